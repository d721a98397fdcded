// Any text is a manifest that is written and read back as the same, or is refused with a reason.
#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tests/fuzz/finding.h"
#include "trainer/checkpoint/checkpoint_manifest.h"

using namespace ddprun::trainer;
using ddprun::fuzz::require;

namespace {

using Json = nlohmann::json;

std::optional<CheckpointManifest> read(std::string_view text) {
  try {
    return parse_manifest(text);
  } catch (const std::invalid_argument& error) {
    require(error.what()[0] != '\0', "an error without a reason");
    return std::nullopt;
  }
}

// The same with the checksum that it should have, which no mutation would hit upon.
std::string with_right_checksum(std::string_view text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("files")) return std::string(text);
  const std::string files = json["files"].dump();
  json["xxh64"] = fmt::format("{:016x}", XXH64(files.data(), files.size(), 0));
  return json.dump();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  read(text);
  const auto manifest = read(with_right_checksum(text));
  if (!manifest) return 0;
  const auto again = read(manifest_text(*manifest));
  require(again.has_value() && again->size() == manifest->size(), "what was written is refused");
  for (const auto& [name, entry] : *manifest) {
    const auto found = again->find(name);
    require(found != again->end() && found->second.bytes == entry.bytes &&
                found->second.checksum == entry.checksum,
            "an entry does not come back as it was");
  }
  return 0;
}
