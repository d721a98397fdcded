// One file over HTTP, from where an earlier attempt stopped.
//
// libcurl does it: proxies, TLS and redirects are not to be written anew. It is opened when it is
// first needed and not linked: it brings some thirty libraries, whose loading each start of `train`
// would pay for, and a machine without it trains all the same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>

namespace ddprun::trainer {

// The message names the address and the reason.
class FetchError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// It is not the network: the file here cannot be written.
class WriteError : public FetchError {
 public:
  using FetchError::FetchError;
};

// Bytes that are there, and of the whole file; the second is 0 while it is not known.
using FetchProgress = std::function<void(std::int64_t, std::int64_t)>;

// Appends to `file` what it lacks of the file at `address` (http, https). A server that cannot go
// on in the middle sends all of it again; where it does not promise as many bytes as are there,
// those stay. That both parts are of one file only a checksum can tell. Gives up where nothing has
// come for a minute. Throws FetchError and WriteError; what has come stays in `file`.
void fetch(const std::string& address, const std::filesystem::path& file,
           const FetchProgress& progress);

}  // namespace ddprun::trainer
