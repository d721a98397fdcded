// What must hold for every file of torch.save that is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "tests/fuzz/finding.h"
#include "trainer/formats/pickle_reader.h"
#include "trainer/formats/torch_file_index.h"
#include "trainer/formats/zip_archive.h"

namespace ddprun::fuzz {

inline void check_stored_tensor(const trainer::StoredTensor& tensor, std::string_view file) {
  static const std::map<std::string, std::size_t> element_bytes{
      {"torch DoubleStorage", 8},   {"torch FloatStorage", 4}, {"torch HalfStorage", 2},
      {"torch BFloat16Storage", 2}, {"torch LongStorage", 8},  {"torch IntStorage", 4},
      {"torch ShortStorage", 2},    {"torch CharStorage", 1},  {"torch ByteStorage", 1},
      {"torch BoolStorage", 1}};
  require(tensor.shape.size() == tensor.strides.size(), "not one stride for each side");
  unsigned __int128 last = 0;
  bool empty = false;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    require(tensor.shape[i] >= 0 && tensor.strides[i] >= 0, "a negative side or stride");
    empty = empty || tensor.shape[i] == 0;
    if (tensor.shape[i] > 0) {
      last += static_cast<unsigned __int128>(tensor.shape[i] - 1) *
              static_cast<std::uint64_t>(tensor.strides[i]);
    }
  }
  const std::size_t bytes = element_bytes.at(tensor.storage);
  require(empty || (last + 1) * bytes == tensor.bytes.size(),
          "a tensor has other bytes than it needs");
  require(tensor.bytes.empty() ||
              (tensor.bytes.data() >= file.data() &&
               tensor.bytes.data() + tensor.bytes.size() <= file.data() + file.size()),
          "a tensor lies outside of the file");
}

inline void check_torch_file(std::string_view file) {
  try {
    std::set<std::string> names;
    for (const trainer::StoredTensor& tensor : trainer::index_torch_file(file)) {
      require(names.insert(tensor.name).second, "a name comes twice");
      check_stored_tensor(tensor, file);
    }
  } catch (const trainer::ZipError& error) {
    require(error.what()[0] != '\0', "an error without a reason");
  } catch (const trainer::PickleError& error) {
    require(error.what()[0] != '\0', "an error without a reason");
  }
}

}  // namespace ddprun::fuzz
