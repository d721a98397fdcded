// Walks the recorded calls of a state_dict and proves that each tensor lies within its storage.
#include "trainer/formats/torch_file_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "trainer/formats/pickle_reader.h"
#include "trainer/formats/zip_archive.h"

namespace ddprun::trainer {
namespace {

using Kind = PickleValue::Kind;

constexpr const char* pickle_name = "data.pkl";
constexpr std::string_view pickle_ending = "/data.pkl";
constexpr std::size_t pickle_bytes_max = std::size_t{16} << 20;  // ResNet-152's has 0.1 MB.
constexpr std::size_t dimensions_max = 16;

struct StorageType {
  std::string_view name;
  std::size_t element_bytes;
};
constexpr std::array<StorageType, 10> storage_types{{{"torch DoubleStorage", 8},
                                                     {"torch FloatStorage", 4},
                                                     {"torch HalfStorage", 2},
                                                     {"torch BFloat16Storage", 2},
                                                     {"torch LongStorage", 8},
                                                     {"torch IntStorage", 4},
                                                     {"torch ShortStorage", 2},
                                                     {"torch CharStorage", 1},
                                                     {"torch ByteStorage", 1},
                                                     {"torch BoolStorage", 1}}};

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

// How many elements of its storage, which has `elements`, a tensor reaches over; nothing when it
// does not lie within, or has a shape that LibTorch cannot count. `count`: how many it has itself.
std::optional<std::int64_t> reach(const std::vector<std::int64_t>& shape,
                                  const std::vector<std::int64_t>& strides, std::int64_t offset,
                                  std::int64_t elements, std::int64_t& count) {
  if (offset < 0 || offset > elements || shape.size() != strides.size()) return std::nullopt;
  bool empty = false;
  std::int64_t last = 0;
  count = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    std::int64_t steps = 0;
    empty = empty || shape[i] == 0;
    if (shape[i] == 0) continue;
    if (__builtin_mul_overflow(shape[i] - 1, strides[i], &steps) ||
        __builtin_add_overflow(last, steps, &last) ||
        __builtin_mul_overflow(count, shape[i], &count)) {
      return std::nullopt;
    }
  }
  if (empty) return count = 0;
  if (last >= elements - offset) return std::nullopt;
  return last + 1;
}

class TorchFile {
 public:
  explicit TorchFile(std::string_view file) : archive_(file) {
    const std::string pickle = archive_.find_ending(pickle_ending);
    if (pickle.empty()) fail("it is an archive, but not one of torch.save");
    folder_ = pickle.substr(0, pickle.size() - pickle_ending.size() + 1);
    if (archive_.has(folder_ + "byteorder") && archive_.read(folder_ + "byteorder") != "little") {
      fail("it was written on a big-endian machine");
    }
  }

  std::vector<StoredTensor> state_dict() {
    const std::string_view bytes = archive_.read(folder_ + pickle_name);
    if (bytes.size() > pickle_bytes_max) {
      fail(fmt::format("its {} has {} bytes (limit {}): save model.state_dict() alone", pickle_name,
                       bytes.size(), pickle_bytes_max));
    }
    const Pickle pickle(bytes);
    const PickleValue* dict = &pickle.root();
    // Training scripts save the model beside epoch and optimizer, under one of these names.
    for (const char* key : {"state_dict", "model", "model_state_dict"}) {
      const PickleValue* inner = pickle.root().find(key);
      if (inner != nullptr && inner->kind == Kind::Dict) {
        dict = inner;
        break;
      }
    }
    if (dict->kind != Kind::Dict) {
      fail("it does not hold a state_dict, but another Python object: save model.state_dict()");
    }
    std::vector<StoredTensor> tensors;
    std::set<std::string_view> names;
    for (std::size_t i = 0; i + 1 < dict->items.size(); i += 2) {
      const std::string& name = item(*dict, i, Kind::Text).text;
      if (!names.insert(name).second) fail(fmt::format("it has two entries '{}'", name));
      tensors.push_back(read_tensor(*dict->items[i + 1], name));
    }
    return tensors;
  }

 private:
  StoredTensor read_tensor(const PickleValue& value, const std::string& name) {
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
    auto shape = numbers(item(arguments, 2, Kind::Tuple));
    auto strides = numbers(item(arguments, 3, Kind::Tuple));

    const std::string& type_name = item(storage, 1, Kind::Global).text;
    const auto type =
        std::find_if(storage_types.begin(), storage_types.end(),
                     [&](const StorageType& known) { return known.name == type_name; });
    if (type == storage_types.end()) {
      fail(fmt::format("its tensor '{}' has a type that is not supported", name));
    }
    const std::string_view bytes = read_storage(item(storage, 2, Kind::Text).text);
    const auto elements = static_cast<std::int64_t>(bytes.size() / type->element_bytes);
    std::int64_t count = 0;
    const auto reached = reach(shape, strides, offset, elements, count);
    if (!reached) fail(fmt::format("its tensor '{}' reaches beyond its data", name));
    if (count > elements) {  // A few bytes could stand for any amount of memory.
      fail(
          fmt::format("its tensor '{}' has more elements than data, as after expand(): save its "
                      "contiguous()",
                      name));
    }
    return {name, type_name, std::move(shape), std::move(strides),
            bytes.substr(static_cast<std::size_t>(offset) * type->element_bytes,
                         static_cast<std::size_t>(*reached) * type->element_bytes)};
  }

  // Its checksum is computed once, however many tensors lie in it.
  std::string_view read_storage(const std::string& key) {
    const auto found = storages_.find(key);
    if (found != storages_.end()) return found->second;
    return storages_[key] = archive_.read(folder_ + "data/" + key);
  }

  static bool is_call_of(const PickleValue& value, std::string_view function) {
    return value.kind == Kind::Call && value.items[0]->kind == Kind::Global &&
           value.items[0]->text == function;
  }

  ZipArchive archive_;
  std::string folder_;
  std::map<std::string, std::string_view> storages_;
};

}  // namespace

std::vector<StoredTensor> index_torch_file(std::string_view file) {
  return TorchFile(file).state_dict();
}

}  // namespace ddprun::trainer
