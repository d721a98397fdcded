// Files of torch.save become tensors; all checks are in torch_file_index.cpp.
#include "trainer/formats/torch_file.h"

#include <map>

#include "trainer/formats/pickle_reader.h"
#include "trainer/formats/torch_file_index.h"
#include "trainer/formats/zip_archive.h"

namespace ddprun::trainer {
namespace {

constexpr std::size_t bytes_per_file_byte_max = 2;  // Tensors may share storage, but not endlessly.

const std::map<std::string, torch::ScalarType>& storage_types() {
  static const std::map<std::string, torch::ScalarType> types{
      {"torch FloatStorage", torch::kFloat32}, {"torch DoubleStorage", torch::kFloat64},
      {"torch HalfStorage", torch::kFloat16},  {"torch BFloat16Storage", torch::kBFloat16},
      {"torch LongStorage", torch::kInt64},    {"torch IntStorage", torch::kInt32},
      {"torch ShortStorage", torch::kInt16},   {"torch CharStorage", torch::kInt8},
      {"torch ByteStorage", torch::kUInt8},    {"torch BoolStorage", torch::kBool}};
  return types;
}

// Copies tensors out of a file.
class TensorCopies {
 public:
  explicit TensorCopies(std::string_view file)
      : bytes_left_(file.size() * bytes_per_file_byte_max) {}

  // from_blob() takes no const memory, but nothing writes to it here. Entries may lie at any byte.
  torch::Tensor copy(const StoredTensor& stored) {
    const std::string_view bytes = stored.bytes;
    const torch::ScalarType type = storage_types().at(stored.storage);
    torch::Tensor raw = torch::from_blob(const_cast<char*>(bytes.data()),
                                         {static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
    const std::size_t element_bytes = torch::elementSize(type);
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % element_bytes != 0) {
      take_from_budget(bytes.size());
      raw = raw.clone();
    }
    const torch::Tensor strided =
        torch::from_blob(raw.data_ptr(), stored.shape, stored.strides, torch::TensorOptions(type));
    take_from_budget(strided.nbytes());
    return strided.clone(torch::MemoryFormat::Contiguous);
  }

 private:
  void take_from_budget(std::size_t bytes) {
    if (bytes > bytes_left_)
      throw PickleError("its tensors claim much more memory than the file has");
    bytes_left_ -= bytes;
  }

  std::size_t bytes_left_;
};

}  // namespace

NamedTensors parse_torch_file(std::string_view file) {
  try {
    NamedTensors tensors;
    TensorCopies copies(file);
    for (const StoredTensor& stored : index_torch_file(file)) {
      tensors.emplace_back(stored.name, copies.copy(stored));
    }
    return tensors;
  } catch (const ZipError& error) {
    throw TorchFileError(error.what());
  } catch (const PickleError& error) {
    throw TorchFileError(error.what());
  }
}

}  // namespace ddprun::trainer
