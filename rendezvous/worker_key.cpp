// Both ends of the descriptor in one file, so that they cannot drift apart.
#include "rendezvous/worker_key.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "command_line/write_all.h"
#include "rendezvous/parse_number.h"
#include "rendezvous/secure/openssl_library.h"
#include "rendezvous/secure/psk.h"

namespace ddprun::rendezvous {
namespace {

constexpr int key_seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

// Whatever else happens to have that number is no key.
bool is_handed_key(int fd) {
  struct stat status {};
  return ::fcntl(fd, F_GET_SEALS) == key_seals && ::fstat(fd, &status) == 0 &&
         status.st_size == static_cast<off_t>(key_bytes);
}

}  // namespace

KeyProof WorkerKey::prove(std::string_view statement) const {
  KeyProof proof{};
  const OpenSsl& ssl = openssl();
  static_assert(sizeof(KeyProof) == 32, "what HMAC-SHA256 writes");
  unsigned size = 0;
  if (ssl.HMAC(ssl.EVP_sha256(), key_.data(), static_cast<int>(key_.size()),
               reinterpret_cast<const unsigned char*>(statement.data()), statement.size(),
               proof.data(), &size) == nullptr ||
      size != proof.size()) {
    throw SecurityError("cannot prove the job's key: OpenSSL's HMAC failed");
  }
  return proof;
}

SecretBytes WorkerKey::derive(const SecretBytes& agreed, std::string_view use) const {
  SecretBytes both(key_.size() + agreed.size());
  std::copy_n(key_.data(), key_.size(), both.data());
  std::copy_n(agreed.data(), agreed.size(), both.data() + key_.size());
  return hkdf_sha256(both.bytes(), "ddprun workers' connection", use, key_bytes);
}

bool WorkerKey::proves(std::string_view statement, const KeyProof& proof) const {
  const KeyProof right = prove(statement);
  unsigned difference = 0;
  for (std::size_t i = 0; i < right.size(); ++i) difference |= right[i] ^ proof[i];
  return difference == 0;
}

UniqueFd hand_over_key(const SecretBytes& key) {
  UniqueFd fd(::memfd_create("ddprun worker key", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  int error = fd ? command_line::write_all(fd.get(), key.text()).error : errno;
  if (error == 0 && ::fcntl(fd.get(), F_ADD_SEALS, key_seals) != 0) error = errno;
  if (error != 0) {
    throw std::system_error(error, std::generic_category(), "cannot keep the workers' key");
  }
  return fd;
}

std::shared_ptr<const WorkerKey> handed_worker_key(const std::optional<std::string>& variable) {
  if (!variable || variable->empty()) return nullptr;
  const int fd = parse_number<int>(*variable).value_or(-1);
  SecretBytes key(key_bytes);
  // Not read(), which all workers of a node would share the position of.
  if (!is_handed_key(fd) ||
      ::pread(fd, key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) {
    throw SecurityError(std::string(worker_key_variable) + "=" + *variable +
                        " names no key of ddprun: a program between ddprun and this worker has "
                        "closed the descriptor; let it pass on descriptor " +
                        *variable + " (Python's subprocess: pass_fds), or run with --auth none");
  }
  return std::make_shared<WorkerKey>(std::move(key));
}

std::string proof_text(const KeyProof& proof) { return {proof.begin(), proof.end()}; }

std::optional<KeyProof> proof_of_text(std::string_view text) {
  KeyProof proof{};
  if (text.size() != proof.size()) return std::nullopt;
  std::copy(text.begin(), text.end(), proof.begin());
  return proof;
}

std::function<std::string(std::string_view statement)> own_store_prover() {
  const auto key = own_worker_key();
  if (!key) return {};
  return [key](std::string_view statement) { return proof_text(key->prove(statement)); };
}

std::shared_ptr<const WorkerKey> own_worker_key() {
  static const std::shared_ptr<const WorkerKey> key = [] {
    const char* value = std::getenv(worker_key_variable);
    return handed_worker_key(value == nullptr ? std::nullopt : std::optional<std::string>(value));
  }();
  return key;
}

}  // namespace ddprun::rendezvous
