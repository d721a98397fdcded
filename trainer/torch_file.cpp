// See weights_file.h: files of torch.save.
//
// A zip archive: <folder>/data.pkl is the pickled object, in which a tensor is a call of
// torch._utils._rebuild_tensor_v2(storage, offset, shape, strides, ...), and a storage a persistent
// identity ("storage", torch.FloatStorage, key, device, elements) whose bytes are the entry
// <folder>/data/<key>.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "trainer/checkpoint.h"
#include "trainer/pickle_reader.h"
#include "trainer/weights_file.h"
#include "trainer/zip_archive.h"

namespace ddprun::trainer {
namespace {

using Kind = PickleValue::Kind;

constexpr const char* pickle_name = "data.pkl";
constexpr std::string_view pickle_ending = "/data.pkl";
constexpr std::size_t dimensions_max = 16;
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

[[noreturn]] void fail(const std::string& what) { throw PickleError(what); }

const PickleValue& item(const PickleValue& value, std::size_t index, Kind kind) {
  if (index >= value.items.size() || value.items[index]->kind != kind) {
    fail("a tensor in it is described in an unknown way");
  }
  return *value.items[index];
}

std::vector<std::int64_t> numbers(const PickleValue& tuple) {
  if (tuple.items.size() > dimensions_max) fail("a tensor in it has too many dimensions");
  std::vector<std::int64_t> result;
  for (std::size_t i = 0; i < tuple.items.size(); ++i) {
    result.push_back(item(tuple, i, Kind::Integer).number);
    if (result.back() < 0) fail("a tensor in it has a negative side or stride");
  }
  return result;
}

// Whether all elements lie within the storage, which has `elements`.
bool fits(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides,
          std::int64_t offset, std::int64_t elements) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return offset <= elements;
  std::int64_t last = offset, count = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(shape[i] - 1, strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last) ||
        __builtin_mul_overflow(count, shape[i], &count) || count > elements) {
      return false;
    }
  }
  return last < elements;
}

class TorchFile {
 public:
  explicit TorchFile(std::string_view file)
      : archive_(file), bytes_left_(file.size() * bytes_per_file_byte_max) {
    const std::string pickle = archive_.find_ending(pickle_ending);
    if (pickle.empty()) fail("it is an archive, but not one of torch.save");
    folder_ = pickle.substr(0, pickle.size() - pickle_ending.size() + 1);
    if (archive_.has(folder_ + "byteorder") && archive_.read(folder_ + "byteorder") != "little") {
      fail("it was written on a big-endian machine");
    }
  }

  NamedTensors state_dict() {
    const Pickle pickle(archive_.read(folder_ + pickle_name));
    const PickleValue* dict = &pickle.root();
    for (const char* key : {"state_dict", "model"}) {
      const PickleValue* inner = pickle.root().find(key);
      if (inner != nullptr && inner->kind == Kind::Dict) {
        dict = inner;
        break;
      }
    }
    if (dict->kind != Kind::Dict) {
      fail("it does not hold a state_dict, but another Python object: save model.state_dict()");
    }
    NamedTensors tensors;
    for (std::size_t i = 0; i + 1 < dict->items.size(); i += 2) {
      const std::string& name = item(*dict, i, Kind::Text).text;
      tensors.emplace_back(name, read_tensor(*dict->items[i + 1], name));
    }
    return tensors;
  }

 private:
  torch::Tensor read_tensor(const PickleValue& value, const std::string& name) {
    const PickleValue* call = &value;
    if (is_call_of(*call, "torch._utils _rebuild_parameter")) {
      call = &item(item(*call, 1, Kind::Tuple), 0, Kind::Call);
    }
    if (!is_call_of(*call, "torch._utils _rebuild_tensor_v2")) {
      fail(fmt::format("its entry '{}' is not a tensor (a state_dict was expected)", name));
    }
    const PickleValue& arguments = item(*call, 1, Kind::Tuple);
    const PickleValue& storage = item(item(arguments, 0, Kind::Persistent), 0, Kind::Tuple);
    const std::int64_t offset = item(arguments, 1, Kind::Integer).number;
    const auto shape = numbers(item(arguments, 2, Kind::Tuple));
    const auto strides = numbers(item(arguments, 3, Kind::Tuple));

    const auto type = storage_types().find(item(storage, 1, Kind::Global).text);
    if (type == storage_types().end()) {
      fail(fmt::format("its tensor '{}' has a type that is not supported", name));
    }
    const std::string_view bytes =
        archive_.read(folder_ + "data/" + item(storage, 2, Kind::Text).text);
    const std::size_t element_bytes = torch::elementSize(type->second);
    const auto elements = static_cast<std::int64_t>(bytes.size() / element_bytes);
    if (offset < 0 || shape.size() != strides.size() || !fits(shape, strides, offset, elements)) {
      fail(fmt::format("its tensor '{}' reaches beyond its data", name));
    }
    return copy(bytes.substr(static_cast<std::size_t>(offset) * element_bytes), shape, strides,
                type->second);
  }

  static bool is_call_of(const PickleValue& value, std::string_view function) {
    return value.kind == Kind::Call && value.items[0]->kind == Kind::Global &&
           value.items[0]->text == function;
  }

  // from_blob() takes no const memory, but nothing writes to it here. Entries may lie at any byte.
  torch::Tensor copy(std::string_view bytes, const std::vector<std::int64_t>& shape,
                     const std::vector<std::int64_t>& strides, torch::ScalarType type) {
    torch::Tensor raw = torch::from_blob(const_cast<char*>(bytes.data()),
                                         {static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
    const std::size_t element_bytes = torch::elementSize(type);
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % element_bytes != 0) {
      take_from_budget(bytes.size());
      raw = raw.clone();
    }
    const torch::Tensor strided =
        torch::from_blob(raw.data_ptr(), shape, strides, torch::TensorOptions(type));
    take_from_budget(strided.nbytes());
    return strided.clone(torch::MemoryFormat::Contiguous);
  }

  void take_from_budget(std::size_t bytes) {
    if (bytes > bytes_left_) fail("its tensors claim much more memory than the file has");
    bytes_left_ -= bytes;
  }

  ZipArchive archive_;
  std::size_t bytes_left_;
  std::string folder_;
};

}  // namespace

NamedTensors parse_torch_file(std::string_view file, const std::string& name) {
  try {
    return TorchFile(file).state_dict();
  } catch (const ZipError& error) {
    throw CheckpointError(
        fmt::format("{} cannot be read as a file of torch.save: {}", name, error.what()));
  } catch (const PickleError& error) {
    throw CheckpointError(
        fmt::format("{} cannot be read as a file of torch.save: {}", name, error.what()));
  }
}

}  // namespace ddprun::trainer
