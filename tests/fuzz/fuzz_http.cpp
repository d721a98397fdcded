// A request to --metrics-port or --status-page: whatever it is, the answer is one of HTTP that ends
// where it says, and a page goes only to who asked for it by GET or HEAD.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "launcher/export/http_reply.h"
#include "tests/fuzz/finding.h"

using namespace ddprun::launcher;
using ddprun::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view request(reinterpret_cast<const char*>(data), size);
  for (const bool own_names_alone : {false, true}) {
    bool given = false;
    const std::string reply =
        http_reply(request, own_names_alone, [&](const std::string&) -> std::optional<HttpPage> {
          given = true;
          return HttpPage{"text/plain", "a page\n"};
        });
    const std::size_t head = reply.find("\r\n\r\n");
    require(reply.starts_with("HTTP/1.1 ") && head != reply.npos, "no answer of HTTP");
    const std::size_t length = reply.find("Content-Length: ");
    require(length < head, "an answer without a length");
    const std::size_t body = reply.size() - head - 4;
    const bool of_head = request.starts_with("HEAD ");
    require(
        body == std::strtoul(reply.c_str() + length + 16, nullptr, 10) || (of_head && body == 0),
        "another length than it says");
    require(given == reply.starts_with("HTTP/1.1 200"), "a page for a request that was refused");
    require(!given || of_head || request.starts_with("GET "), "a page for no GET");
  }
  return 0;
}
