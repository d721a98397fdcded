// What lies where in a file of torch.save, checked, without LibTorch.
//
// A zip archive: <folder>/data.pkl is the pickled object, in which a tensor is a call of
// torch._utils._rebuild_tensor_v2(storage, offset, shape, strides, ...), and a storage a persistent
// identity ("storage", torch.FloatStorage, key, device, elements) whose bytes are the entry
// <folder>/data/<key>. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::trainer {

struct StoredTensor {
  std::string name;
  std::string storage;  // One of those that LibTorch has a dtype for: "torch FloatStorage".
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // In elements, >= 0.
  std::string_view bytes;  // Of the file, from the first to the last element. At any address.
};

// The tensors of a state_dict, or of a dict that holds one under "state_dict", "model" or
// "model_state_dict". No name comes twice. Time and memory are linear in the file. Throws ZipError
// and PickleError.
std::vector<StoredTensor> index_torch_file(std::string_view file);

}  // namespace ddprun::trainer
