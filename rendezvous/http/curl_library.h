// libcurl, opened when it is first needed and not linked: it brings some thirty libraries, whose
// loading each start would pay for, and a machine without it works all the same.
//
// Beyond curl_easy_init() and its like nothing is called, so that any libcurl 4 serves. Its header
// is needed where this is included.
#pragma once

#include <curl/curl.h>

#include <stdexcept>

namespace ddprun::rendezvous {

class CurlMissing : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct CurlFunctions {
  decltype(&curl_easy_init) init = nullptr;
  decltype(&curl_easy_setopt) set = nullptr;
  decltype(&curl_easy_perform) perform = nullptr;
  decltype(&curl_easy_getinfo) info = nullptr;
  decltype(&curl_easy_strerror) words = nullptr;
  decltype(&curl_easy_cleanup) clean_up = nullptr;
  decltype(&curl_slist_append) append = nullptr;
  decltype(&curl_slist_free_all) free_list = nullptr;
};

// The same ones for all threads. Throws CurlMissing, which says what to install.
const CurlFunctions& curl();

}  // namespace ddprun::rendezvous
