// Looks up at run time what a linker would have bound.
#include "rendezvous/http/curl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace ddprun::rendezvous {
namespace {

template <typename Function>
void look_up_curl(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) throw CurlMissing(fmt::format("libcurl has no {}", name));
}

}  // namespace

const CurlFunctions& curl() {
  static const CurlFunctions functions = [] {
    void* library = nullptr;
    for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"}) {
      if (library == nullptr) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) {
      throw CurlMissing(
          fmt::format("libcurl cannot be opened ({}): install it (Debian: libcurl4)", ::dlerror()));
    }
    CurlFunctions found;
    look_up_curl(library, "curl_easy_init", found.init);
    look_up_curl(library, "curl_easy_setopt", found.set);
    look_up_curl(library, "curl_easy_perform", found.perform);
    look_up_curl(library, "curl_easy_getinfo", found.info);
    look_up_curl(library, "curl_easy_strerror", found.words);
    look_up_curl(library, "curl_easy_cleanup", found.clean_up);
    look_up_curl(library, "curl_slist_append", found.append);
    look_up_curl(library, "curl_slist_free_all", found.free_list);
    // curl_easy_init() would call it, and must not in two threads at once.
    decltype(&curl_global_init) set_up = nullptr;
    look_up_curl(library, "curl_global_init", set_up);
    if (set_up(CURL_GLOBAL_DEFAULT) != CURLE_OK) throw CurlMissing("libcurl cannot be set up");
    return found;
  }();
  return functions;
}

}  // namespace ddprun::rendezvous
