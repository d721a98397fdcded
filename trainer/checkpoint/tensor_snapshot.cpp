// One block for all tensors, filled by all threads: the time that a step waits for a checkpoint.
#include "trainer/checkpoint/tensor_snapshot.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

namespace ddprun::trainer {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::size_t page_bytes = 4096;
constexpr std::size_t piece_bytes = std::size_t{1} << 20;
constexpr std::int64_t pieces_per_thread = 8;

std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

struct Piece {
  void* to;
  const void* from;
  std::size_t bytes;
};

void copy_pieces(const std::vector<Piece>& pieces) {
  at::parallel_for(0, static_cast<std::int64_t>(pieces.size()), pieces_per_thread,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       const Piece& piece = pieces[static_cast<std::size_t>(i)];
                       std::memcpy(piece.to, piece.from, piece.bytes);
                     }
                   });
}

void add_pieces(const torch::Tensor& to, const torch::Tensor& from, std::vector<Piece>& pieces) {
  auto* target = static_cast<char*>(to.data_ptr());
  const auto* source = static_cast<const char*>(from.data_ptr());
  for (std::size_t at = 0; at < from.nbytes(); at += piece_bytes) {
    pieces.push_back({target + at, source + at, std::min(piece_bytes, from.nbytes() - at)});
  }
}

}  // namespace

std::size_t snapshot_bytes(const NamedTensors& tensors) {
  std::map<const void*, std::size_t> bytes;
  for (const auto& [name, tensor] : tensors) {
    bytes[tensor.unsafeGetTensorImpl()] = aligned(tensor.nbytes());
  }
  std::size_t sum = 0;
  for (const auto& [impl, count] : bytes) sum += count;
  return sum;
}

void TensorSnapshot::reserve(std::size_t bytes, bool from_gpu) {
  if (memory_.defined() && memory_.nbytes() >= bytes) return;
  memory_ = torch::Tensor();  // The old block first, so that both are never there together.
  memory_ = torch::empty({static_cast<std::int64_t>(bytes)},
                         torch::TensorOptions(torch::kUInt8).pinned_memory(from_gpu));
  auto* begin = static_cast<char*>(memory_.data_ptr());
  if (!from_gpu) {
    void* pages = begin;
    std::size_t left = bytes;
    if (std::align(page_bytes, page_bytes, pages, left) != nullptr) {
      // Only a hint: nothing is lost where it is refused.
      ::madvise(pages, left / page_bytes * page_bytes, MADV_HUGEPAGE);
    }
  }
  // The first touch makes the kernel hand out the page: now, in the writer's thread, and not in a
  // step.
  for (std::size_t at = 0; at < bytes; at += page_bytes) begin[at] = 0;
}

NamedTensors TensorSnapshot::take(const NamedTensors& tensors) {
  torch::NoGradGuard no_grad;
  const auto on_gpu = [](const auto& entry) { return !entry.second.device().is_cpu(); };
  const auto gpu = std::find_if(tensors.begin(), tensors.end(), on_gpu);
  reserve(snapshot_bytes(tensors), gpu != tensors.end());

  NamedTensors copies;
  std::map<const void*, torch::Tensor> known;
  std::vector<Piece> pieces;
  std::vector<torch::Tensor> kept;  // What the pieces point to.
  std::size_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    torch::Tensor& copy = known[tensor.unsafeGetTensorImpl()];
    if (!copy.defined()) {
      const torch::Tensor source =
          tensor.is_non_overlapping_and_dense() ? tensor.detach() : tensor.detach().contiguous();
      copy = torch::from_blob(
          static_cast<char*>(memory_.data_ptr()) + offset, source.sizes(), source.strides(),
          [memory = memory_](void*) {}, torch::TensorOptions(source.scalar_type()));
      offset += aligned(source.nbytes());
      if (source.device().is_cpu()) {
        add_pieces(copy, source, pieces);
        kept.push_back(source);
      } else {
        copy.copy_(source, /*non_blocking=*/true);
      }
    }
    copies.emplace_back(name, copy);
  }
  copy_pieces(pieces);
  if (gpu != tensors.end()) {
    const torch::Device device = gpu->second.device();
    copied_.emplace(device.type());
    copied_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  return copies;
}

void TensorSnapshot::wait_for_device() {
  if (copied_) copied_->synchronize();
  copied_.reset();
}

}  // namespace ddprun::trainer
