// Which OpenSSL is opened: our copy of the machine's, or the machine's itself. Of that one library
// is opened; its functions and those of libcrypto, which it brings, are found through it.
#include "rendezvous/secure/openssl_library.h"

#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

#include "rendezvous/secure/openssl_copy.h"
#include "rendezvous/secure/security_error.h"
#include "rendezvous/strangers_module.h"

namespace ddprun::rendezvous {
namespace {

// The usual one first.
constexpr std::array<const char*, 3> machines_libraries = {"libssl.so.3", "libssl.so.4",
                                                           "libssl.so.1.1"};

template <typename Function>
void look_up_openssl(void* library, const char* file, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw SecurityError(std::string(file) + " has no " + name + ": is it OpenSSL, 1.1.1 or newer?");
  }
}

OpenSsl open_machines_openssl() {
  std::string why;
  for (const char* file : machines_libraries) {
    // Never closed: threads and connections may use it until the process ends.
    void* library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      if (why.empty()) why = ::dlerror();
      continue;
    }
    OpenSsl found;
#define DDPRUN_OPENSSL_LOOK_UP(name) look_up_openssl(library, file, #name, found.name);
    DDPRUN_OPENSSL_FUNCTIONS(DDPRUN_OPENSSL_LOOK_UP)
#undef DDPRUN_OPENSSL_LOOK_UP
    start_openssl(found);
    return found;
  }
  throw SecurityError(
      "a job of several hosts needs OpenSSL (3, 4 or 1.1.1), which cannot be opened (" + why +
      "): install it (Debian: libssl3), or run without a secret: --auth none");
}

#ifdef DDPRUN_OPENSSL_FOLDER
// Beside this program, or where it is installed. Nowhere else: who could put a library on the
// loader's path would have the secret.
void* open_module_of_copy() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  if (program.empty()) return nullptr;
  for (const char* folder : {".", DDPRUN_MODULES_FROM_PROGRAM}) {
    const auto file = program / folder / openssl_copy_file;
    if (is_strangers_module(file)) continue;
    if (void* module = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL); module != nullptr) {
      return module;
    }
  }
  return nullptr;
}

// Nothing where the machine's own has to serve.
std::optional<OpenSsl> open_copy() {
  if (!is_copy_of(DDPRUN_OPENSSL_FOLDER, DDPRUN_SSL_BUILD_ID, DDPRUN_CRYPTO_BUILD_ID)) return {};
  void* module = open_module_of_copy();
  if (module == nullptr) return {};
  auto* fill = reinterpret_cast<FillFromOpenSslCopy*>(::dlsym(module, openssl_copy_entry));
  OpenSsl found;
  if (fill == nullptr || !fill(&found, openssl_table_names)) return {};
  return found;
}
#else
std::optional<OpenSsl> open_copy() { return {}; }  // The build made none, and said why.
#endif

}  // namespace

const OpenSsl& openssl() {
  static const OpenSsl functions = [] {
    const std::optional<OpenSsl> copy = open_copy();
    return copy ? *copy : open_machines_openssl();
  }();
  return functions;
}

}  // namespace ddprun::rendezvous
