// The text of manifest.json both ways; what cannot be believed is refused as a whole.
#include "trainer/checkpoint/checkpoint_manifest.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "rendezvous/json/json_depth.h"

namespace ddprun::trainer {
namespace {

using Json = nlohmann::json;  // Keys in order, so that the text is a function of the content.

constexpr std::size_t text_bytes_max = 1 << 20;
constexpr int depth_max = 3;  // {"files": {name: {field: value}}}

std::string checksum_of(const Json& files) {
  const std::string text = files.dump(-1, ' ', false, Json::error_handler_t::replace);
  return fmt::format("{:016x}", XXH64(text.data(), text.size(), 0));
}

}  // namespace

std::string manifest_text(const CheckpointManifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, entry] : manifest) {
    files[name] = {{"bytes", entry.bytes}, {"xxh64", entry.checksum}};
  }
  return Json{{"files", files}, {"xxh64", checksum_of(files)}}.dump(2) + "\n";
}

CheckpointManifest parse_manifest(std::string_view text) {
  if (text.size() > text_bytes_max) throw std::invalid_argument("it is too long");
  if (rendezvous::nests_deeper_than(text, depth_max))
    throw std::invalid_argument("it is nested too deep");
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("files") || !json["files"].is_object() ||
      !json.contains("xxh64") || !json["xxh64"].is_string()) {
    throw std::invalid_argument("it is not a JSON object with \"files\" and \"xxh64\"");
  }
  if (json["xxh64"].get_ref<const std::string&>() != checksum_of(json["files"])) {
    throw std::invalid_argument("its content has another checksum than it says");
  }
  CheckpointManifest manifest;
  for (const auto& [name, entry] : json["files"].items()) {
    if (!entry.is_object() || !entry.contains("bytes") || !entry["bytes"].is_number_unsigned() ||
        !entry.contains("xxh64") || !entry["xxh64"].is_string()) {
      throw std::invalid_argument("the entry of '" + name + "' lacks \"bytes\" or \"xxh64\"");
    }
    manifest[name] = {entry["bytes"].get<std::uint64_t>(), entry["xxh64"].get<std::string>()};
  }
  return manifest;
}

}  // namespace ddprun::trainer
