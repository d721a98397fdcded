// Every check of a safetensors file, without LibTorch, so that the fuzzers reach all of them.
#include "trainer/formats/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "rendezvous/json/json_depth.h"
#include "trainer/formats/checksum.h"
#include "trainer/formats/safetensors_format.h"

namespace ddprun::trainer {
namespace {

using namespace safetensors_format;
using Json = nlohmann::json;  // Finds keys in logarithmic time: a header may have very many.

constexpr int depth_max = 3;  // {tensor: {field: [number]}}
constexpr std::size_t tensor_bytes_max = std::size_t{10} << 40;

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = length_bytes; i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

struct Dtype {
  std::string_view name;
  std::size_t bytes;
};
constexpr std::array<Dtype, 10> dtypes{{{"F64", 8},
                                        {"F32", 4},
                                        {"F16", 2},
                                        {"BF16", 2},
                                        {"I64", 8},
                                        {"I32", 4},
                                        {"I16", 2},
                                        {"I8", 1},
                                        {"U8", 1},
                                        {"BOOL", 1}}};

std::size_t unsigned_number(const Json& value, const std::string& file, const std::string& what) {
  if (!value.is_number_unsigned()) fail(file, what + " is not a whole number >= 0");
  return value.get<std::size_t>();
}

// Everything about one tensor that can be checked without the others.
SafetensorsEntry parse_entry(const std::string& name, const Json& json, std::size_t data_bytes,
                             const std::string& file) {
  const std::string tensor = fmt::format("tensor '{}'", name);
  if (!json.is_object() || !json.contains("dtype") || !json["dtype"].is_string() ||
      !json.contains("shape") || !json["shape"].is_array() || !json.contains("data_offsets") ||
      !json["data_offsets"].is_array() || json["data_offsets"].size() != 2) {
    fail(file, tensor + " lacks a valid dtype, shape or data_offsets");
  }
  const std::string& dtype_name = json["dtype"].get_ref<const std::string&>();
  const auto dtype = std::find_if(dtypes.begin(), dtypes.end(),
                                  [&](const Dtype& known) { return known.name == dtype_name; });
  if (dtype == dtypes.end())
    fail(file, fmt::format("{} has unknown dtype '{}'", tensor, dtype_name));

  SafetensorsEntry entry{name, dtype_name, {}, 0, 0};
  std::size_t bytes = dtype->bytes;
  bool empty = false;
  for (const Json& side : json["shape"]) {
    const std::size_t length = unsigned_number(side, file, "a side of " + tensor);
    empty = empty || length == 0;
    if (length > 0 && bytes > tensor_bytes_max / length) {
      fail(file, fmt::format("{} has an impossible shape {}", tensor, json["shape"].dump()));
    }
    if (length > 0) bytes *= length;
    entry.shape.push_back(static_cast<std::int64_t>(length));
  }
  if (empty) bytes = 0;
  entry.begin = unsigned_number(json["data_offsets"][0], file, "an offset of " + tensor);
  entry.end = unsigned_number(json["data_offsets"][1], file, "an offset of " + tensor);
  if (entry.begin > entry.end || entry.end > data_bytes) {
    fail(file, fmt::format("{} claims bytes {} to {} of {}: the file is truncated or its header "
                           "is wrong",
                           tensor, entry.begin, entry.end, data_bytes));
  }
  if (entry.end - entry.begin != bytes) {
    fail(file, fmt::format("{} has {} bytes, but shape {} of {} needs {}", tensor,
                           entry.end - entry.begin, json["shape"].dump(), dtype_name, bytes));
  }
  return entry;
}

// Brings the tensors into file order, in which each must begin where the one before ends.
void sort_and_check(std::vector<SafetensorsEntry>& entries, std::size_t data_bytes,
                    const std::string& file) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  std::size_t expected = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != expected) {
      fail(file, fmt::format("tensor '{}' begins at byte {} of the data, expected {}: tensors {}",
                             entry.name, entry.begin, expected,
                             entry.begin < expected ? "overlap" : "leave a hole"));
    }
    expected = entry.end;
  }
  if (expected != data_bytes) {
    fail(file, fmt::format("{} bytes of data, but the tensors end at {}", data_bytes, expected));
  }
}

std::map<std::string, std::string> parse_metadata(const Json& json, const std::string& file) {
  if (!json.is_object()) fail(file, "__metadata__ is not an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) fail(file, fmt::format("__metadata__ '{}' is not a string", key));
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// The sum covers the header too, with the sum's own digits replaced by zeros.
void check_checksum(std::string_view file, std::size_t header_bytes, const std::string& expected,
                    const std::string& name) {
  const std::string field = fmt::format("\"{}\":\"{}\"", checksum_key, expected);
  const std::size_t at = file.substr(length_bytes, header_bytes).find(field);
  if (expected.size() != std::strlen(checksum_zeros) || at == std::string_view::npos) {
    fail(name, "its checksum is not in the expected form");
  }
  const std::size_t digits = length_bytes + at + field.size() - 1 - expected.size();
  Checksum hash;
  hash.add(file.data(), digits);
  hash.add(checksum_zeros, expected.size());
  hash.add(file.data() + digits + expected.size(), file.size() - digits - expected.size());
  if (hash.hex() != expected) {
    fail(name, fmt::format("its content has the checksum {}, expected {}: the file is damaged",
                           hash.hex(), expected));
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view file, const std::string& name) {
  if (file.size() < length_bytes) {
    fail(name, fmt::format("{} bytes long: truncated, or not a safetensors file", file.size()));
  }
  const std::uint64_t header_bytes = little_endian(file);
  if (header_bytes > header_bytes_max || header_bytes > file.size() - length_bytes) {
    fail(name,
         fmt::format("its header claims {} bytes, but {} follow (limit {}): truncated, or not "
                     "a safetensors file",
                     header_bytes, file.size() - length_bytes, header_bytes_max));
  }
  const std::string_view text = file.substr(length_bytes, header_bytes);
  // Before parsing, as the text may be nothing but brackets. A parser's callback that leaves deep
  // values out was tried: it removes them one by one, and wide headers took minutes.
  if (rendezvous::nests_deeper_than(text, depth_max)) fail(name, "its header is nested too deep");
  const Json header = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!text.starts_with('{') || !header.is_object()) fail(name, "its header is not a JSON object");

  SafetensorsHeader contents;
  contents.data = file.substr(length_bytes + header_bytes);
  for (const auto& [key, value] : header.items()) {
    if (key == metadata_key) {
      contents.metadata = parse_metadata(value, name);
    } else {
      contents.tensors.push_back(parse_entry(key, value, contents.data.size(), name));
    }
  }
  sort_and_check(contents.tensors, contents.data.size(), name);
  if (const auto sum = contents.metadata.find(checksum_key); sum != contents.metadata.end()) {
    check_checksum(file, header_bytes, sum->second, name);
  }
  return contents;
}

}  // namespace ddprun::trainer
