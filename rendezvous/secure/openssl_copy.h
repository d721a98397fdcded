// What the module with a copy of OpenSSL and its opener agree on, and when the copy may be used.
//
// The copy (cmake/openssl_copy.cmake) is linked statically, which is what makes it quick to open,
// and what an update of the machine's OpenSSL does not reach. So it serves only while the machine
// has the libraries that it is a copy of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/secure/openssl_library.h"

namespace ddprun::rendezvous {

constexpr const char* openssl_copy_file = "libddprun_openssl.so";

// `table_names` of another ddprun's module differ, and it must not fill this one's table.
// False: it cannot serve.
using FillFromOpenSslCopy = bool(OpenSsl* table, std::uint64_t table_names);
constexpr const char* openssl_copy_entry = "ddprun_fill_from_openssl_copy";

constexpr std::uint64_t hash_of_names(std::string_view names) {
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a.
  for (const char letter : names) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211U;
  }
  return hash;
}
#define DDPRUN_OPENSSL_NAME(name) #name " "
constexpr std::uint64_t openssl_table_names =
    hash_of_names(DDPRUN_OPENSSL_FUNCTIONS(DDPRUN_OPENSSL_NAME));
#undef DDPRUN_OPENSSL_NAME

// The linker's mark of one build of a library, in hexadecimal digits; empty where there is none, or
// no such file.
std::string build_id_of(const std::string& library_file);

// Whether `folder` holds the libraries with these marks: the machine's OpenSSL is that of the copy.
bool is_copy_of(const std::string& folder, std::string_view ssl_build_id,
                std::string_view crypto_build_id);

}  // namespace ddprun::rendezvous
