// The reader: all checks are done in safetensors_header.cpp, so this only copies into tensors.
#include <algorithm>
#include <cstring>

#include "trainer/formats/safetensors.h"
#include "trainer/formats/safetensors_types.h"
#include "trainer/formats/whole_file.h"

namespace ddprun::trainer {
namespace {

// The header's parser takes no dtype that is not in the list.
torch::ScalarType type_of(const std::string& dtype) {
  return std::find_if(safetensors_format::dtypes.begin(), safetensors_format::dtypes.end(),
                      [&](const auto& known) { return known.name == dtype; })
      ->type;
}

}  // namespace

Safetensors parse_safetensors(std::string_view file, const std::string& name) {
  SafetensorsHeader header = parse_safetensors_header(file, name);
  Safetensors contents;
  contents.metadata = std::move(header.metadata);
  for (const SafetensorsEntry& entry : header.tensors) {
    torch::Tensor tensor = torch::empty(entry.shape, type_of(entry.dtype));
    if (entry.end > entry.begin) {
      std::memcpy(tensor.data_ptr(), header.data.data() + entry.begin, entry.end - entry.begin);
    }
    contents.tensors.emplace_back(entry.name, std::move(tensor));
  }
  return contents;
}

Safetensors read_safetensors(const std::filesystem::path& path) {
  try {
    return parse_safetensors(read_whole_file(path), path.string());
  } catch (const FileAccessError& error) {
    throw SafetensorsAccessError(error.what());
  } catch (const FileError& error) {
    throw SafetensorsError(error.what());
  }
}

}  // namespace ddprun::trainer
