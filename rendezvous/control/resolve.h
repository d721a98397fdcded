// Host names to addresses, without blocking the event loop and without holding up its end.
//
// getaddrinfo() can hang for many seconds on a slow name server and cannot be cancelled. asio's own
// resolver would make the program wait for it at exit; here the look-up runs in a detached thread
// that shares nothing with the event loop but one small block of memory.
#pragma once

#include <asio/awaitable.hpp>
#include <string>
#include <vector>

namespace ddprun::rendezvous {

struct Resolved {
  std::vector<std::string> addresses;  // Numeric, in the order of the system's preference.
  std::string error;                   // Why there are none: "Name or service not known".
};

// Addresses ("10.0.0.7", "::1") are returned as they are, without a look-up.
asio::awaitable<Resolved> resolve(std::string host);

// Whether `host` is an address already.
bool is_address(const std::string& host);

}  // namespace ddprun::rendezvous
