// Two sides that have never met agree on a number that whoever listens does not learn (X25519).
//
// By itself it does not say with whom: both public keys have to be in what the sides prove to each
// other. With it, who records a connection and gets the job's secret later cannot read it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "rendezvous/secure/secret_bytes.h"
#include "rendezvous/secure/security_error.h"

struct evp_pkey_st;  // OpenSSL's.

namespace ddprun::rendezvous {

constexpr std::size_t public_key_bytes = 32;

class KeyAgreement {
 public:
  KeyAgreement();  // A new pair of keys, for one connection. Throws SecurityError.
  ~KeyAgreement();
  KeyAgreement(const KeyAgreement&) = delete;
  KeyAgreement& operator=(const KeyAgreement&) = delete;

  const std::string& public_key() const { return public_key_; }  // public_key_bytes long.
  // Equal on both sides. Throws SecurityError: no key, or one of those that make the result known.
  SecretBytes agree(std::string_view other_public_key) const;

 private:
  evp_pkey_st* pair_;
  std::string public_key_;
};

}  // namespace ddprun::rendezvous
