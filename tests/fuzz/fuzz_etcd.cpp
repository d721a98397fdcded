// An answer of etcd's gateway, of any server at the address that was given. What is taken is no
// longer than it came, and what goes out as base64 comes back.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "rendezvous/arbiter/claim_text.h"
#include "rendezvous/arbiter/etcd_text.h"
#include "tests/fuzz/finding.h"

using namespace ddprun::rendezvous;
using ddprun::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  require(from_base64(to_base64(text)) == text, "base64 does not come back");
  parse_etcd_grant(text);
  parse_etcd_keep_alive(text);
  const auto result = parse_etcd_result(text);
  if (!result) return 0;
  std::size_t bytes = 0;
  for (const auto& [key, value] : result->values) {
    bytes += key.size() + value.size();
    parse_claim(value);
  }
  require(bytes <= size, "more was read than came");
  return 0;
}
