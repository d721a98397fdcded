// Any bytes are a file whose tensors lie one behind the other and fill it, or are refused with a
// reason that names the file.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "tests/fuzz/finding.h"
#include "trainer/formats/safetensors_header.h"

using namespace ddprun::trainer;
using ddprun::fuzz::require;

namespace {

// Source: the format's own list of dtypes.
const std::map<std::string, std::size_t> element_bytes{
    {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},
    {"I32", 4}, {"I16", 2}, {"I8", 1},  {"U8", 1},   {"BOOL", 1}};

void check(const SafetensorsHeader& header) {
  std::size_t at = 0;
  for (const SafetensorsEntry& entry : header.tensors) {
    require(entry.begin == at && entry.end >= at, "a hole, or an overlap");
    at = entry.end;
    unsigned __int128 bytes = element_bytes.at(entry.dtype);
    for (const std::int64_t side : entry.shape) {
      require(side >= 0, "a negative side");
      bytes *= static_cast<std::uint64_t>(side);
    }
    require(bytes == entry.end - entry.begin, "a shape that does not fit its bytes");
  }
  require(at == header.data.size(), "bytes that belong to no tensor");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    const SafetensorsHeader header = parse_safetensors_header(file, "file");
    check(header);
    require(header.data.data() + header.data.size() == file.data() + file.size(),
            "the data is not the end of the file");
  } catch (const SafetensorsError& error) {
    require(std::string_view(error.what()).starts_with("file: "), "an error names no file");
  }
  return 0;
}
