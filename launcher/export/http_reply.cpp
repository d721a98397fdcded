// HTTP/1.0 as far as a GET needs it: every answer closes its connection, so none needs to say where
// it ends, and does.
#include "launcher/export/http_reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace ddprun::launcher {
namespace {

std::string whole_reply(const char* status, const HttpPage& page, bool head_alone) {
  std::string text = fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
      status, page.content_type, page.body.size());
  if (!head_alone) text += page.body;
  return text;
}

std::string refusal(const char* status, const std::string& why) {
  return whole_reply(status, {"text/plain; charset=utf-8", why + "\n"}, false);
}

// The value of the header Host, without a port.
std::string host_of(std::string_view request) {
  while (!request.empty()) {
    const std::size_t end = std::min(request.find("\r\n"), request.size());
    std::string line(request.substr(0, end));
    request.remove_prefix(std::min(end + 2, request.size()));
    std::transform(line.begin(), line.end(), line.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (!line.starts_with("host:")) continue;
    std::string host = line.substr(std::min(line.size(), line.find_first_not_of(" \t", 5)));
    host.resize(host.find_last_not_of(" \t") + 1);
    if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
    return host.substr(0, host.find(':'));
  }
  return "";
}

bool is_own_name(const std::string& host) {
  if (host.empty() || host == "localhost" || host.starts_with('[')) return true;
  return std::all_of(host.begin(), host.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0 || c == '.'; });
}

}  // namespace

std::string http_forbidden(const std::string& why) { return refusal("403 Forbidden", why); }

std::string http_reply(std::string_view request, bool own_names_alone, const PageLookup& lookup) {
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const std::size_t first = line.find(' ');
  const std::size_t second = first == line.npos ? line.npos : line.find(' ', first + 1);
  if (second == line.npos || !line.substr(second + 1).starts_with("HTTP/1.")) {
    return refusal("400 Bad Request", "this is no request of HTTP/1");
  }
  const std::string_view method = line.substr(0, first);
  if (method != "GET" && method != "HEAD") {
    return refusal("405 Method Not Allowed", "there is nothing here but to read");
  }
  if (own_names_alone && !is_own_name(host_of(request))) {
    return http_forbidden("ask by address, or as localhost");
  }
  const std::string_view target = line.substr(first + 1, second - first - 1);
  const auto page = lookup(std::string(target.substr(0, target.find('?'))));
  if (!page) return refusal("404 Not Found", "no such page");
  return whole_reply("200 OK", *page, method == "HEAD");
}

}  // namespace ddprun::launcher
