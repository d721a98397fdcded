// OpenSSL refuses by itself the few public keys with which every result is zero.
#include "rendezvous/key_agreement.h"

#include <memory>

#include "rendezvous/secure/openssl_library.h"

namespace ddprun::rendezvous {
namespace {

// nullptr: this OpenSSL cannot.
EVP_PKEY* new_pair() {
  const OpenSsl& ssl = openssl();
  const KeyContext context(ssl.EVP_PKEY_CTX_new_id(EVP_PKEY_X25519, nullptr),
                           ssl.EVP_PKEY_CTX_free);
  EVP_PKEY* pair = nullptr;
  if (!context || ssl.EVP_PKEY_keygen_init(context.get()) != 1 ||
      ssl.EVP_PKEY_keygen(context.get(), &pair) != 1) {
    return nullptr;
  }
  return pair;
}

}  // namespace

KeyAgreement::KeyAgreement() : pair_(new_pair()), public_key_(public_key_bytes, '\0') {
  std::size_t size = public_key_.size();
  if (pair_ == nullptr ||
      openssl().EVP_PKEY_get_raw_public_key(
          pair_, reinterpret_cast<unsigned char*>(public_key_.data()), &size) != 1 ||
      size != public_key_bytes) {
    openssl().EVP_PKEY_free(pair_);
    throw SecurityError("cannot make a key for a connection: this OpenSSL has no X25519");
  }
}

KeyAgreement::~KeyAgreement() { openssl().EVP_PKEY_free(pair_); }

SecretBytes KeyAgreement::agree(std::string_view other_public_key) const {
  const OpenSsl& ssl = openssl();
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> other(
      ssl.EVP_PKEY_new_raw_public_key(
          EVP_PKEY_X25519, nullptr, reinterpret_cast<const unsigned char*>(other_public_key.data()),
          other_public_key.size()),
      ssl.EVP_PKEY_free);
  const KeyContext context(ssl.EVP_PKEY_CTX_new(pair_, nullptr), ssl.EVP_PKEY_CTX_free);
  SecretBytes agreed(public_key_bytes);
  std::size_t size = agreed.size();
  if (!other || !context || ssl.EVP_PKEY_derive_init(context.get()) != 1 ||
      ssl.EVP_PKEY_derive_set_peer(context.get(), other.get()) != 1 ||
      ssl.EVP_PKEY_derive(context.get(), agreed.data(), &size) != 1 || size != agreed.size()) {
    ssl.ERR_clear_error();
    throw SecurityError("cannot agree on a key: what the other side sent is no key of X25519");
  }
  return agreed;
}

}  // namespace ddprun::rendezvous
