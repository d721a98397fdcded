// One library is opened; its functions and those of libcrypto, which it brings, are found through
// it.
#include "rendezvous/secure/openssl_library.h"

#include <dlfcn.h>

#include <cstdint>
#include <string>

#include "rendezvous/secure/security_error.h"

namespace ddprun::rendezvous {
namespace {

template <typename Function>
void look_up_openssl(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw SecurityError(std::string("libssl.so.3 has no ") + name + ": is it OpenSSL 3?");
  }
}

OpenSsl open_openssl() {
  // Never closed: threads and connections may use it until the process ends.
  void* library = ::dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw SecurityError(std::string("a job of several hosts needs OpenSSL 3, which cannot be "
                                    "opened (") +
                        ::dlerror() +
                        "): install it (Debian: libssl3), or run without a secret: --auth none");
  }
  OpenSsl found;
#define DDPRUN_OPENSSL_LOOK_UP(name) look_up_openssl(library, #name, found.name);
  DDPRUN_OPENSSL_FUNCTIONS(DDPRUN_OPENSSL_LOOK_UP)
#undef DDPRUN_OPENSSL_LOOK_UP
  // No handlers at exit: the agent may end while a guard or a look-up of names still runs. Names of
  // ciphers and words for errors cost 0.6 of 3 ms and serve nobody here; that they are not wanted
  // must be said before the second line, which would load them.
  constexpr std::uint64_t without =
      OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT | OPENSSL_INIT_NO_LOAD_CRYPTO_STRINGS;
  found.OPENSSL_init_crypto(
      without | OPENSSL_INIT_NO_ADD_ALL_CIPHERS | OPENSSL_INIT_NO_ADD_ALL_DIGESTS, nullptr);
  found.OPENSSL_init_ssl(without | OPENSSL_INIT_NO_LOAD_SSL_STRINGS, nullptr);
  return found;
}

}  // namespace

const OpenSsl& openssl() {
  static const OpenSsl functions = open_openssl();
  return functions;
}

}  // namespace ddprun::rendezvous
