// Shares are cut into pieces of one length, whatever tensors they are made of: a collective for
// each parameter would cost a round trip for each, and one for all of them a second model.
#include "worker/torch/zero/share_exchange.h"

#include <algorithm>
#include <cstddef>

#include "worker/torch/tensor_collectives.h"

namespace ddprun::worker {
namespace {

using Bytes = std::vector<at::Tensor>;  // The memory of tensors, one behind the other.

Bytes bytes_of(const std::vector<at::Tensor>& tensors) {
  Bytes bytes;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() > 0) bytes.push_back(memory_view(tensor).view(at::kByte));
  }
  return bytes;
}

std::int64_t size_of(const Bytes& bytes) {
  std::int64_t size = 0;
  for (const at::Tensor& one : bytes) size += one.numel();
  return size;
}

enum class Way { Pack, Unpack };

// Between `piece` and what of `bytes` lies at `offset` and after it.
void copy_piece(const Bytes& bytes, std::int64_t offset, const at::Tensor& piece, Way way) {
  std::int64_t start = 0;
  for (const at::Tensor& one : bytes) {
    const std::int64_t first = std::max(start, offset);
    const std::int64_t last = std::min(start + one.numel(), offset + piece.numel());
    if (first < last) {
      const at::Tensor there = one.narrow(0, first - start, last - first);
      const at::Tensor here = piece.narrow(0, first - offset, last - first);
      way == Way::Pack ? here.copy_(there) : there.copy_(here);
    }
    start += one.numel();
  }
}

}  // namespace

at::Tensor ShareExchange::piece_memory(std::int64_t longest, at::Device device) {
  if (!gathered_.defined()) {
    const std::int64_t world = communicator_.world_size();
    const std::int64_t piece = std::clamp<std::int64_t>(gathered_bytes_ / world, 1, longest);
    gathered_ =
        allocate_tensor(communicator_, static_cast<std::size_t>(world * piece), at::kByte, device)
            .view({world, piece});
    own_ = at::empty({piece}, gathered_.options());
  }
  return gathered_;
}

void ShareExchange::run(const std::vector<std::vector<at::Tensor>>& shares) {
  const at::NoGradGuard no_grad;
  std::vector<Bytes> all;
  std::int64_t longest = 0;
  at::Device device = at::kCPU;
  for (const std::vector<at::Tensor>& share : shares) {
    all.push_back(bytes_of(share));
    longest = std::max(longest, size_of(all.back()));
    if (!share.empty()) device = share.front().device();
  }
  if (longest == 0 || communicator_.world_size() == 1) return;

  const at::Tensor gathered = piece_memory(longest, device);
  const auto rank = static_cast<std::size_t>(communicator_.rank());
  for (std::int64_t offset = 0; offset < longest; offset += own_.numel()) {
    copy_piece(all[rank], offset, own_, Way::Pack);
    communicator_.all_gather(own_.data_ptr(), gathered.data_ptr(),
                             static_cast<std::size_t>(own_.numel()), DataType::UInt8,
                             current_stream(device));
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (r != rank)
        copy_piece(all[r], offset, gathered[static_cast<std::int64_t>(r)], Way::Unpack);
    }
  }
}

}  // namespace ddprun::worker
