// Tensors to raw memory and streams, by c10's device-generic interfaces: no CUDA header is needed.
#include "worker/torch/tensor_collectives.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace ddprun::worker {
namespace {

void check_device(const Communicator& communicator, const at::Tensor& tensor) {
  if (!is_for(communicator, tensor.device())) {
    throw std::invalid_argument("collective on a tensor on " + tensor.device().str() +
                                " with a communicator for " + communicator.description());
  }
}

void check_sendable(const Communicator& communicator, const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) {
    throw std::invalid_argument(c10::str("collective on a tensor with the layout ", tensor.layout(),
                                         ", and memory travels: call to_dense() first"));
  }
  if (!tensor.is_non_overlapping_and_dense()) {
    throw std::invalid_argument("collective on a tensor with gaps or overlaps in memory " +
                                c10::str(tensor.sizes(), " with strides ", tensor.strides()) +
                                ": call contiguous() first");
  }
  check_device(communicator, tensor);
}

// What LibTorch keeps of freed tensors is most of a GPU after some steps, when a communicator of
// the next attempt asks for memory that is not LibTorch's.
std::shared_ptr<void> allocate(Communicator& communicator, std::size_t bytes, at::Device device) {
  try {
    return communicator.allocate(bytes);
  } catch (const OutOfMemory&) {
    if (device.is_cpu()) throw;
  }
  c10::getDeviceAllocator(device.type())->emptyCache();
  return communicator.allocate(bytes);
}

// As PyTorch's over NCCL. Bools travel as bytes, whose sum is no bool, or that of 256 ranks none.
ReduceOp op_of_bools(ReduceOp op) {
  if (op == ReduceOp::Average) {
    throw std::invalid_argument(
        "bools have no average: their sum tells whether any rank has true, and the average of "
        "to(kFloat) how many have");
  }
  return op == ReduceOp::Sum ? ReduceOp::Max : op;
}

void unpack(const at::Tensor& flat, const std::vector<at::Tensor>& views) {
  std::int64_t offset = 0;
  for (const at::Tensor& view : views) {
    view.copy_(flat.narrow(0, offset, view.numel()));
    offset += view.numel();
  }
}

}  // namespace

DataType data_type_of(at::ScalarType type, const std::string& what) {
  switch (type) {
    case at::kFloat:
      return DataType::Float32;
    case at::kDouble:
      return DataType::Float64;
    case at::kHalf:
      return DataType::Float16;
    case at::kBFloat16:
      return DataType::BFloat16;
    case at::kInt:
      return DataType::Int32;
    case at::kLong:
      return DataType::Int64;
    case at::kByte:
    case at::kBool:
      return DataType::UInt8;
    default:
      throw std::invalid_argument(what + " has dtype " + c10::toString(type) +
                                  ", which the collectives cannot send");
  }
}

at::DeviceType device_type_of(const Communicator& communicator) {
  return communicator.is_cuda() ? at::kCUDA : at::kCPU;
}

bool is_for(const Communicator& communicator, at::Device device) {
  if (device.type() != device_type_of(communicator)) return false;
  return communicator.cuda_device().value_or(device.index()) == device.index();
}

Stream current_stream(at::Device device) {
  if (device.is_cpu()) return nullptr;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.getStreamNativeHandle(guard.getStream(device));
}

at::Tensor memory_view(const at::Tensor& tensor) {
  return at::as_strided(tensor.detach(), {tensor.numel()}, {1}, tensor.storage_offset());
}

void all_reduce(Communicator& communicator, const at::Tensor& tensor, ReduceOp op) {
  check_sendable(communicator, tensor);
  if (tensor.scalar_type() == at::kBool) op = op_of_bools(op);
  communicator.all_reduce(tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()),
                          data_type_of(tensor.scalar_type(), "the tensor to reduce"), op,
                          current_stream(tensor.device()));
}

void broadcast(Communicator& communicator, at::Tensor& tensor, int root) {
  check_sendable(communicator, tensor);
  communicator.broadcast(tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()),
                         data_type_of(tensor.scalar_type(), "the tensor to broadcast"), root,
                         current_stream(tensor.device()));
}

at::Tensor all_gather(Communicator& communicator, const at::Tensor& tensor) {
  check_sendable(communicator, tensor);
  const at::Tensor send = tensor.contiguous();
  std::vector<std::int64_t> sizes{communicator.world_size()};
  sizes.insert(sizes.end(), send.sizes().begin(), send.sizes().end());
  at::Tensor gathered = at::empty(sizes, send.options());
  communicator.all_gather(
      send.data_ptr(), gathered.data_ptr(), static_cast<std::size_t>(send.numel()),
      data_type_of(send.scalar_type(), "the tensor to gather"), current_stream(send.device()));
  return gathered;
}

at::Tensor result_on_host(Communicator& communicator, const at::Tensor& tensor) {
  communicator.wait(current_stream(tensor.device()));
  return tensor.to(at::kCPU);
}

std::string broadcast_text(Communicator& communicator, const std::string& text, at::Device device,
                           int root) {
  at::Tensor size = at::tensor({static_cast<std::int64_t>(text.size())}, at::kLong).to(device);
  broadcast(communicator, size, root);
  const auto bytes = result_on_host(communicator, size).item<std::int64_t>();
  if (bytes == 0) return "";
  at::Tensor data = at::zeros({bytes}, at::kByte);
  if (communicator.rank() == root) {
    std::copy(text.begin(), text.end(), data.data_ptr<std::uint8_t>());
  }
  data = data.to(device);
  broadcast(communicator, data, root);
  data = result_on_host(communicator, data);
  const auto* const first = data.data_ptr<std::uint8_t>();
  return {first, first + bytes};
}

at::Tensor allocate_tensor(Communicator& communicator, std::size_t bytes, at::ScalarType type,
                           at::Device device) {
  std::shared_ptr<void> memory = allocate(communicator, bytes, device);
  void* const data = memory.get();
  const auto elements = static_cast<std::int64_t>(bytes / c10::elementSize(type));
  // The deleter owns the memory: it is released with the last view of this tensor.
  return at::from_blob(
      data, {elements}, [memory = std::move(memory)](void*) {},
      at::TensorOptions().dtype(type).device(device), device);
}

at::Tensor TensorBroadcast::staging(at::Device device, std::int64_t bytes, Memory memory) {
  for (const at::Tensor& known : stagings_) {
    if (known.device() == device && known.numel() >= bytes) return known.narrow(0, 0, bytes);
  }
  // It is kept, and what is made within InferenceMode could not be written to after it.
  const c10::InferenceMode no_inference(false);
  stagings_.push_back(
      memory == Memory::OfCommunicator
          ? allocate_tensor(communicator_, static_cast<std::size_t>(bytes), at::kByte, device)
          : at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device)));
  return stagings_.back();
}

// As bytes, whatever they are. A transfer takes many tensors at a time: a ResNet-18 has 122, most
// of them small.
void TensorBroadcast::for_each_device(const std::vector<at::Tensor>& tensors, Memory memory,
                                      const Transfer& transfer) {
  const at::NoGradGuard no_grad;
  std::vector<bool> done(tensors.size(), false);
  for (std::size_t first = 0; first < tensors.size(); ++first) {
    if (done[first]) continue;
    const at::Device device = tensors[first].device();
    std::vector<at::Tensor> near;
    std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // Of tensors with gaps in memory.
    std::int64_t bytes = 0;
    for (std::size_t i = first; i < tensors.size(); ++i) {
      if (tensors[i].device() != device) continue;
      check_device(communicator_, tensors[i]);
      done[i] = true;
      at::Tensor dense = tensors[i];
      if (!dense.is_non_overlapping_and_dense()) {
        dense = dense.contiguous();
        copies.emplace_back(tensors[i], dense);
      }
      near.push_back(memory_view(dense).view(at::kByte));
      bytes += near.back().numel();
    }
    if (bytes == 0) continue;
    at::Tensor flat = staging(device, bytes, memory);
    transfer(flat, near);
    for (const auto& [tensor, copy] : copies) tensor.copy_(copy);
  }
}

// In ordinary memory: to make a communicator's is a call of its own, and shared pages that nobody
// has touched yet cost more than a broadcast that copies.
void TensorBroadcast::run(const std::vector<at::Tensor>& tensors, int root) {
  const auto send = [&](at::Tensor& flat, const std::vector<at::Tensor>& bytes) {
    if (communicator_.rank() == root) at::cat_out(flat, bytes);
    broadcast(communicator_, flat, root);
    // What an ended broadcast has left must not become weights with which a survivor goes on.
    communicator_.wait(current_stream(flat.device()));
    if (communicator_.rank() != root) unpack(flat, bytes);
  };
  for_each_device(tensors, Memory::Ordinary, send);
}

void TensorBroadcast::run_from_smallest(const std::vector<at::Tensor>& tensors,
                                        std::int32_t priority) {
  if (tensors.empty()) return;
  const at::Tensor own = at::full({1}, priority, tensors.front().options().dtype(at::kInt));
  at::Tensor smallest = own.clone();
  all_reduce(communicator_, smallest, ReduceOp::Min);
  const at::Tensor is_own = smallest.eq(own).to(at::kByte);
  const auto send = [&](at::Tensor& flat, const std::vector<at::Tensor>& bytes) {
    at::cat_out(flat, bytes);
    flat.mul_(is_own);  // The sum with zeros has the bits, whatever the bytes stand for.
    all_reduce(communicator_, flat, ReduceOp::Sum);
    unpack(flat, bytes);
  };
  for_each_device(tensors, Memory::OfCommunicator, send);
}

}  // namespace ddprun::worker
