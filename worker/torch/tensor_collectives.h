// The communicator's collectives on tensors: checks dtype, layout and device, finds the stream.
//
// Tensors must be dense, with the same strides on all ranks: what travels is the memory, not the
// logical order of elements. (TensorBroadcast also takes those with gaps, whose copies travel.) On
// CUDA the work is queued on the current stream of the tensor's device. Errors:
// std::invalid_argument for a tensor that cannot be sent; CommunicatorError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/communicator.h"
#include "worker/torch/libtorch.h"

namespace ddprun::worker {

// Throws std::invalid_argument, with `what` in the message, for a dtype that has no DataType.
DataType data_type_of(at::ScalarType type, const std::string& what);

// The device type on which the communicator's memory lies.
at::DeviceType device_type_of(const Communicator& communicator);

// Whether the communicator's memory may lie there.
bool is_for(const Communicator& communicator, at::Device device);

// The device's current stream as the communicator wants it; nullptr on the CPU.
Stream current_stream(at::Device device);

// The elements of a dense tensor in the order of its memory, as one dimension.
at::Tensor memory_view(const at::Tensor& tensor);

// The sum of bools is whether any rank has true, as over NCCL in PyTorch.
void all_reduce(Communicator& communicator, const at::Tensor& tensor, ReduceOp op);
void broadcast(Communicator& communicator, at::Tensor& tensor, int root);

// [world_size, *tensor.shape], row r from rank r.
at::Tensor all_gather(Communicator& communicator, const at::Tensor& tensor);

// What a collective has left in `tensor`, in the host's memory. Waits for it, and throws where it
// was ended instead (Communicator::wait).
at::Tensor result_on_host(Communicator& communicator, const at::Tensor& tensor);

// Rank `root`'s text on all ranks, by way of memory on the communicator's device. Waits for it.
// Collective.
std::string broadcast_text(Communicator& communicator, const std::string& text, at::Device device,
                           int root);

// Memory from communicator.allocate() as a flat tensor that keeps it alive.
at::Tensor allocate_tensor(Communicator& communicator, std::size_t bytes, at::ScalarType type,
                           at::Device device);

// Overwrites tensors of any dtypes and layouts with rank `root`'s, in one broadcast. Collective:
// the same dtypes, shapes and strides in the same order on all ranks. Keeps its staging memory for
// the next call with the same tensors.
class TensorBroadcast {
 public:
  explicit TensorBroadcast(Communicator& communicator) : communicator_(communicator) {}

  // Waits for it. Throws where it was ended, and overwrites nothing with it.
  void run(const std::vector<at::Tensor>& tensors, int root);

  // From the rank that calls with the smallest `priority`, of which there must be one alone. It
  // need not be known beforehand, and the host does not wait for a device to learn of it; costs two
  // all-reduces.
  void run_from_smallest(const std::vector<at::Tensor>& tensors, std::int32_t priority);

 private:
  using Transfer = std::function<void(at::Tensor& flat, const std::vector<at::Tensor>& bytes)>;
  enum class Memory { Ordinary, OfCommunicator };
  void for_each_device(const std::vector<at::Tensor>& tensors, Memory memory,
                       const Transfer& transfer);
  at::Tensor staging(at::Device device, std::int64_t bytes, Memory memory);

  Communicator& communicator_;
  std::vector<at::Tensor> stagings_;  // Flat bytes.
};

}  // namespace ddprun::worker
