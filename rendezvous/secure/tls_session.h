// One TLS connection, without its socket: bytes of the wire in, bytes for the wire and what the
// other side said out.
//
// A core: no socket and no clock; who has them bounds how long a handshake may take. Nothing that
// came before the other side has proved the key is ever given out, and nothing of ours is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/secure/tls_context.h"

struct ssl_st;  // OpenSSL's.
struct bio_st;

namespace ddprun::rendezvous {

enum class TlsFailure : std::uint8_t {
  None,
  WrongKey,   // The other side does not have our key, or says that we do not have its.
  PlainPeer,  // It does not speak TLS but our lines: it is an agent or a coordinator without
              // secret.
  Broken,     // Anything else: no TLS at all, that of another program, or bytes that its key did
              // not seal.
};

class TlsSession {
 public:
  enum class Role : std::uint8_t { Client, Server };
  // Bytes of a handshake; more are a stranger's. Ours have less than a thousand.
  static constexpr std::size_t handshake_bytes_max = 16u << 10;

  TlsSession(std::shared_ptr<const TlsContext> context, Role role);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // From the wire. A client begins with nothing: receive("").
  void receive(std::string_view wire);
  // Sealed as soon as the other side has proved the key.
  void send(std::string_view text);
  // Tells the other side that nothing follows.
  void close();

  std::string take_to_send();  // For the wire; also after a failure, which it tells the other side.
  std::string take_received();  // What the other side said.

  bool established() const { return established_; }  // Both sides have proved the key.
  bool ended() const { return ended_; }              // The other side said that nothing follows.
  TlsFailure failure() const { return failure_; }
  const std::string& why() const { return why_; }  // In words; "" = no failure.

 private:
  void shake_hands();
  void unseal();
  void fail(TlsFailure failure, std::string why);
  void fail_handshake();

  const std::shared_ptr<const TlsContext> context_;
  ssl_st* ssl_;
  bio_st* from_wire_;  // Both belong to ssl_.
  bio_st* to_wire_;
  std::size_t handshake_bytes_ = 0;
  std::string unsent_;  // Until the handshake is done.
  std::string received_;
  bool established_ = false;
  bool ended_ = false;
  TlsFailure failure_ = TlsFailure::None;
  std::string why_;
};

}  // namespace ddprun::rendezvous
