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
  EVP_KDF* kdf = ssl.EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_HKDF, nullptr);
  const std::unique_ptr<EVP_KDF_CTX, void (*)(EVP_KDF_CTX*)> context(ssl.EVP_KDF_CTX_new(kdf),
                                                                     ssl.EVP_KDF_CTX_free);
  ssl.EVP_KDF_free(kdf);  // The context has its own share of it.
  // OpenSSL takes parameters as pointers to what could be written, and writes to none of these.
  const auto octets = [&](const char* name, const void* data, std::size_t bytes) {
    return ssl.OSSL_PARAM_construct_octet_string(name, const_cast<void*>(data), bytes);
  };
  char digest[] = "SHA256";
  const std::array<OSSL_PARAM, 5> parameters = {
      ssl.OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      octets(OSSL_KDF_PARAM_KEY, secret.data(), secret.size()),
      octets(OSSL_KDF_PARAM_SALT, salt.data(), salt.size()),
      octets(OSSL_KDF_PARAM_INFO, info.data(), info.size()), ssl.OSSL_PARAM_construct_end()};
  SecretBytes key(size);
  const bool derived =
      context && ssl.EVP_KDF_derive(context.get(), key.data(), key.size(), parameters.data()) == 1;
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
