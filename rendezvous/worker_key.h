// The key of a job's workers: how a launcher hands it to them, and how they prove it to each other.
//
// It is derived from the job's secret, which workers never get. It goes through a descriptor that
// they inherit: a sealed file in memory, which no environment, command line or disk shows. Programs
// that do not know of it, such as Python ones, have one descriptor more and no harm of it.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/contract/worker_key_place.h"
#include "rendezvous/secure/secret_bytes.h"
#include "rendezvous/secure/security_error.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::rendezvous {

using KeyProof = std::array<unsigned char, 32>;

class WorkerKey {
 public:
  explicit WorkerKey(SecretBytes key) : key_(std::move(key)) {}

  // HMAC-SHA256. A statement must hold a number that the other side has chosen, or it could be one
  // that was overheard. Throws SecurityError.
  KeyProof prove(std::string_view statement) const;
  // A key for one use: of one direction of one connection, whose sides have agreed on `agreed`
  // (key_agreement.h). Throws SecurityError.
  SecretBytes derive(const SecretBytes& agreed, std::string_view use) const;
  // In a time that does not tell how much of it was right.
  bool proves(std::string_view statement, const KeyProof& proof) const;

 private:
  SecretBytes key_;
};

// The file to inherit. Throws std::system_error.
UniqueFd hand_over_key(const SecretBytes& key);

// What stands behind `variable`'s value: null where it is not set. Throws SecurityError when it is
// set and the descriptor is not that file: a program in between has closed it.
std::shared_ptr<const WorkerKey> handed_worker_key(const std::optional<std::string>& variable);

// As text, for the store (rendezvous/wire/store_attempt.h).
std::string proof_text(const KeyProof& proof);
std::optional<KeyProof> proof_of_text(std::string_view text);

// Proves the key of this process to a store; empty when it has none. Throws as above.
std::function<std::string(std::string_view statement)> own_store_prover();

// That of this process, looked up once. Throws as above.
std::shared_ptr<const WorkerKey> own_worker_key();

}  // namespace ddprun::rendezvous
