// Why a job cannot have what keeps strangers out: a secret file that does not serve, an OpenSSL
// that is not there. The message says what to do.
#pragma once

#include <stdexcept>

namespace ddprun::rendezvous {

class SecurityError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace ddprun::rendezvous
