// The first bytes of a connection between two ranks, seen from either side.
//
//   without a key   caller: hello, with the word that the callee has published in the store
//   with a key      caller: hello, with a nonce; callee: a nonce and its proof; caller: its proof
//
// A proof is of the workers' key (rendezvous/worker_key.h) over both nonces, both ranks, the
// channel, the attempt and its term, the callee's word and the side that makes it: overheard, sent
// back, or meant for another connection it proves nothing. What follows on the connection is plain,
// unless the contact is sealed: then the nonces are public keys (rendezvous/key_agreement.h), so
// that what the sides prove is with whom they have agreed, and all that follows is sealed with keys
// derived from the workers' key and from what was agreed, one for each direction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "rendezvous/attempt_name.h"
#include "rendezvous/key_agreement.h"
#include "rendezvous/worker_key.h"
#include "worker/peers/peer_link.h"

namespace ddprun::worker {

using rendezvous::Epoch;
using rendezvous::WorkerKey;

enum class MeshChannel : std::uint32_t { Data, Watch };

enum class GreetingState : std::uint8_t { Waiting, Done, Failed };

constexpr std::size_t mesh_word_chars = 32;  // Of random_id().

// Which connection it is.
struct MeshContact {
  Epoch epoch = 0;
  std::uint32_t caller = 0;  // Ranks.
  std::uint32_t callee = 0;
  MeshChannel channel = MeshChannel::Data;
  std::string word;     // The callee's, mesh_word_chars long.
  bool sealed = false;  // With a key only; both sides must say so.
};

struct MeshHello {
  std::uint32_t magic = 0;
  std::uint32_t rank = 0;
  Epoch epoch = 0;
  MeshChannel channel = MeshChannel::Data;
  std::uint32_t reserved = 0;       // No padding: it travels as it lies in memory.
  char word[mesh_word_chars] = {};  // The callee's; with a key the caller's nonce.
};
static_assert(sizeof(MeshHello) == 24 + mesh_word_chars);

struct MeshAnswer {
  char nonce[mesh_word_chars] = {};
  rendezvous::KeyProof proof{};
};

// What `proof` is of; for tests, too.
std::string mesh_statement(bool by_caller, const MeshContact& contact, const char* caller_nonce,
                           const char* callee_nonce);

// Both need a socket that does not block; `key` may be null. go_on() when it is readable.
class OutgoingGreeting {
 public:
  OutgoingGreeting(UniqueFd socket, MeshContact contact, std::shared_ptr<const WorkerKey> key);

  int begin();  // Says hello; returns errno, or 0. Without a key that is all.
  GreetingState go_on();

  const MeshContact& contact() const { return contact_; }
  const std::string& why() const { return why_; }  // After Failed.
  int fd() const { return socket_.get(); }
  PeerLink take();  // After Done. Throws rendezvous::SecurityError.

 private:
  GreetingState fail(const std::string& why);

  UniqueFd socket_;
  MeshContact contact_;
  std::shared_ptr<const WorkerKey> key_;
  std::unique_ptr<rendezvous::KeyAgreement> agreement_;
  std::string nonce_;
  MeshAnswer answer_;
  std::size_t received_ = 0;
  std::string why_;
};

class IncomingGreeting {
 public:
  // Of the one that is called: its epoch, rank and word.
  IncomingGreeting(UniqueFd socket, Epoch epoch, int rank, std::string word,
                   std::shared_ptr<const WorkerKey> key, bool sealed = false);

  GreetingState go_on();

  const MeshContact& contact() const { return contact_; }  // After Done: who has called.
  const std::string& why() const { return why_; }  // After Failed; empty: a stranger has called.
  int fd() const { return socket_.get(); }
  PeerLink take();  // After Done. Throws rendezvous::SecurityError.

 private:
  GreetingState answer();

  UniqueFd socket_;
  MeshContact contact_;
  std::shared_ptr<const WorkerKey> key_;
  std::unique_ptr<rendezvous::KeyAgreement> agreement_;
  MeshHello hello_;
  MeshAnswer answer_;
  rendezvous::KeyProof proof_{};
  std::size_t received_ = 0;
  bool answered_ = false;
  std::string why_;
};

}  // namespace ddprun::worker
