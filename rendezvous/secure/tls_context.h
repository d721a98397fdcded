// What all TLS connections of a job have in common: TLS 1.3 alone, one pre-shared key, and nothing
// else that could prove who somebody is.
//
// No certificates, no older version, no tickets, no early data, no renegotiation: a handshake ends
// well only if both ends have the key. Each has fresh keys of its own (X25519 beside the shared
// key), so what was recorded stays closed to who learns the secret later.
#pragma once

#include <memory>
#include <string_view>

#include "rendezvous/secure/secret_bytes.h"

struct ssl_ctx_st;  // OpenSSL's, whose headers only this room includes.

namespace ddprun::rendezvous {

// Said in the clear, so it tells nothing: the same for every job. Which one it is, the key proves.
constexpr std::string_view psk_identity = "ddprun";

class TlsContext {
 public:
  // `key`: key_bytes, see psk.h. Opens OpenSSL. Throws SecurityError.
  explicit TlsContext(SecretBytes key);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  const SecretBytes& key() const { return key_; }
  ssl_ctx_st* native() const { return context_; }

 private:
  SecretBytes key_;
  ssl_ctx_st* context_ = nullptr;
};

}  // namespace ddprun::rendezvous
