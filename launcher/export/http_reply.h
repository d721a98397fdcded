// What is answered to a request for a page: GET and HEAD, no more. A core.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun::launcher {

struct HttpPage {
  std::string content_type;
  std::string body;
};
using PageLookup = std::function<std::optional<HttpPage>(const std::string& path)>;

// The whole answer, head and body, to a request's head (up to its empty line). `own_names_alone`:
// only to who asked for an address, or for localhost: a name that somebody else's page has given to
// this address (DNS rebinding) would let that page read ours.
std::string http_reply(std::string_view request, bool own_names_alone, const PageLookup& lookup);

// The answer to whoever may not read.
std::string http_forbidden(const std::string& why);

}  // namespace ddprun::launcher
