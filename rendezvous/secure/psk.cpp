// The labels are part of the protocol: another one is another job.
#include "rendezvous/secure/psk.h"

#include <array>
#include <cstring>
#include <memory>
#include <string>

#include "rendezvous/secure/openssl_library.h"
#include "rendezvous/secure/security_error.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::string_view key_salt = "ddprun job secret";

// OpenSSL cleans its heap, but not what its functions leave on the stack. Best effort: where the
// dynamic linker or a signal saves registers, half a key may lie until the next call overwrites it.
[[gnu::noinline]] void clear_stack_below() {
  std::array<unsigned char, 32 * 1024> room;
  ::explicit_bzero(room.data(), room.size());
}

SecretBytes labelled_key(const SecretBytes& job_secret, std::string_view use,
                         std::string_view run_id) {
  // A label holds no NUL, so no label and run id together read like another pair.
  std::string info(use);
  info += '\0';
  info += run_id;
  return hkdf_sha256(job_secret.bytes(), key_salt, info, key_bytes);
}

}  // namespace

SecretBytes hkdf_sha256(std::span<const unsigned char> secret, std::string_view salt,
                        std::string_view info, std::size_t size) {
  const OpenSsl& ssl = openssl();
  const KeyContext context(ssl.EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr), ssl.EVP_PKEY_CTX_free);
  // What <openssl/kdf.h> has names for is this call in OpenSSL 1.1.1, and other functions later. Of
  // any kind of key and operation (-1), whose numbers are not the same in all. It takes pointers to
  // what could be written, and writes to none of these.
  const auto set = [&](int what, const void* data, std::size_t bytes) {
    return ssl.EVP_PKEY_CTX_ctrl(context.get(), -1, -1, what, static_cast<int>(bytes),
                                 const_cast<void*>(data)) == 1;
  };
  SecretBytes key(size);
  std::size_t derived_bytes = size;
  const bool derived = context && ssl.EVP_PKEY_derive_init(context.get()) == 1 &&
                       set(EVP_PKEY_CTRL_HKDF_MD, ssl.EVP_sha256(), 0) &&
                       set(EVP_PKEY_CTRL_HKDF_KEY, secret.data(), secret.size()) &&
                       set(EVP_PKEY_CTRL_HKDF_SALT, salt.data(), salt.size()) &&
                       set(EVP_PKEY_CTRL_HKDF_INFO, info.data(), info.size()) &&
                       ssl.EVP_PKEY_derive(context.get(), key.data(), &derived_bytes) == 1 &&
                       derived_bytes == size;
  clear_stack_below();
  if (!derived) {
    throw SecurityError("cannot derive a key from the job's secret: OpenSSL's HKDF failed");
  }
  return key;
}

SecretBytes control_key(const SecretBytes& job_secret, std::string_view run_id) {
  return labelled_key(job_secret, "control 1", run_id);
}

SecretBytes worker_key(const SecretBytes& job_secret, std::string_view run_id) {
  return labelled_key(job_secret, "workers 1", run_id);
}

}  // namespace ddprun::rendezvous
