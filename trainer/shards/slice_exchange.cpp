// Messages and an all-gather, of which the communicators promise the bytes; not their sums.
#include "trainer/shards/slice_exchange.h"

#include <memory>
#include <utility>

namespace ddprun::trainer {

using worker::DataType;

SliceExchange::SliceExchange(worker::Communicator& communicator, const ShardShares& shares)
    : communicator_(communicator), shards_(shares.back().end) {
  for (const ShardRange& range : shares) {
    nodes_.push_back(nodes_of(shards_, range));
    slices_.emplace_back(nodes_.back().size());
  }
}

void SliceExchange::run(const std::vector<torch::Tensor>& own, torch::Tensor& total) {
  const torch::NoGradGuard no_grad;
  const std::int64_t size = total.numel() / communicator_.world_size();
  swap_slices(own, size);
  NodeCounter counter(shards_);
  std::vector<torch::Tensor> kept;
  for (std::size_t rank = 0; rank < nodes_.size(); ++rank) {
    for (std::size_t i = 0; i < nodes_[rank].size(); ++i) {
      torch::Tensor sum = slices_[rank][i];
      // In place, also in this rank's own sums, which the caller has no more use for.
      for (int met = counter.push(nodes_[rank][i]); met > 0; --met) {
        sum = kept.back().add_(sum);
        kept.pop_back();
      }
      kept.push_back(sum);
    }
  }
  communicator_.all_gather(kept.front().data_ptr(), total.data_ptr(),
                           static_cast<std::size_t>(size), DataType::Float32);
}

void SliceExchange::swap_slices(const std::vector<torch::Tensor>& own, std::int64_t size) {
  const int self = communicator_.rank();
  const auto count = static_cast<std::size_t>(size);
  std::vector<std::unique_ptr<worker::Request>> requests;
  // All are posted before any is waited for: two ranks that first sent to each other would wait for
  // ever once their sums are larger than what sockets hold.
  for (int rank = 0; rank < communicator_.world_size(); ++rank) {
    std::vector<torch::Tensor>& slices = slices_[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < slices.size(); ++i) {
      if (rank == self) {
        slices[i] = own[i].narrow(0, rank * size, size);
        continue;
      }
      if (!slices[i].defined() || slices[i].numel() != size) slices[i] = torch::empty({size});
      requests.push_back(communicator_.irecv(slices[i].data_ptr(), count, DataType::Float32, rank));
    }
  }
  for (int rank = 0; rank < communicator_.world_size(); ++rank) {
    if (rank == self) continue;
    for (const torch::Tensor& sum : own) {
      requests.push_back(
          communicator_.isend(sum.data_ptr<float>() + rank * size, count, DataType::Float32, rank));
    }
  }
  for (const auto& request : requests) request->wait();
}

}  // namespace ddprun::trainer
