// Which way the sums take, and in which order a rank goes through its shards.
#include "trainer/shards/sharded_batch.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "worker/torch/tensor_collectives.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t plain_size = 3;  // The loss, and the counts of right answers.
constexpr std::uintptr_t alignment_bytes = 64;

std::vector<torch::Tensor> trained_parameters(const torch::nn::Module& model) {
  std::vector<torch::Tensor> parameters;
  for (const torch::Tensor& parameter : model.parameters()) {
    if (parameter.requires_grad()) parameters.push_back(parameter);
  }
  return parameters;
}

torch::Device device_of(const std::vector<torch::Tensor>& parameters) {
  return parameters.empty() ? torch::Device(torch::kCPU) : parameters.front().device();
}

// Where a batch begins must not show in its sums: some libraries' depend on the alignment.
torch::Tensor aligned_part(const torch::Tensor& all, std::int64_t part, std::int64_t size) {
  torch::Tensor images = all.narrow(0, part * size, size);
  const auto address = reinterpret_cast<std::uintptr_t>(images.data_ptr());
  return address % alignment_bytes == 0 ? images : images.clone();
}

}  // namespace

ShardedBatch::ShardedBatch(const torch::nn::Module& model, worker::Communicator& communicator,
                           const ShardShares& shares, Sums sums)
    : communicator_(communicator),
      world_size_(communicator.world_size()),
      shards_(shares.back().end),
      own_(shares[static_cast<std::size_t>(communicator.rank())]),
      parameters_(trained_parameters(model)),
      statistics_(model),
      sums_(shards_, parameters_, statistics_.size() + plain_size, world_size_),
      figures_(torch::zeros({statistics_.size() + plain_size}, device_of(parameters_))),
      host_figures_(figures_.cpu()) {
  const bool by_ranks =
      sums == Sums::AnyBits || (sums == Sums::InTreeOrder && ranks_continue_tree(shards_, shares));
  if (world_size_ > 1 && !by_ranks) exchange_.emplace(communicator, shares);
}

void ShardedBatch::prepare(worker::DataParallelOptions& options) {
  // They are equal on all ranks after each step, and ranks have different numbers of forwards.
  options.broadcast_buffers = false;
  if (!reduces_in_backward()) return;
  if (!options.queue) options.queue = worker::reduction_queue_of(communicator_, figures_.device());
  queue_ = options.queue;
  if (world_size_ == shards_) return;
  options.sum = true;
  options.complete_gradient = [this](std::size_t parameter, const torch::Tensor& gradient) {
    sums_.complete(parameter, gradient);
  };
}

ShardedFigures ShardedBatch::run(worker::DistributedDataParallelBase& parallel,
                                 const torch::Tensor& images, const torch::Tensor& labels,
                                 const Work& work) {
  const std::int64_t size = images.size(0) / own_.count();
  if (size * own_.count() != images.size(0)) {
    throw std::invalid_argument("shards: " + std::to_string(images.size(0)) + " images for " +
                                std::to_string(own_.count()) + " shards of one size");
  }
  own_loss_.reset();
  statistics_.begin_step();
  for (int shard = own_.first; shard < own_.end; ++shard) {
    reducing_ = shard + 1 == own_.end && reduces_in_backward();
    if (shard != own_.first) parallel.zero_grad();
    statistics_.begin_shard();
    std::optional<worker::DistributedDataParallelBase::NoSync> local;
    if (!reducing_) local.emplace(parallel);
    work(shard, aligned_part(images, shard - own_.first, size),
         labels.narrow(0, (shard - own_.first) * size, size));
    if (!reducing_) sums_.add(shard, figures_);
  }
  if (reducing_) {
    queue_->wait();
  } else {
    reduce_after_backward();
  }
  // From here on weights are made of it. On a GPU sums that were ended look like sums.
  communicator_.wait(worker::current_stream(figures_.device()));
  divide_gradients();
  sums_.clear();
  if (!figures_.is_cpu()) host_figures_.copy_(figures_);
  statistics_.update(host_figures_.data_ptr<float>(), shards_);
  const float* const plain = plain_figures();
  const float loss = plain[0] / static_cast<float>(shards_);
  const std::int64_t all = size * shards_;
  return {.loss = torch::tensor(loss),
          .counts = torch::tensor({static_cast<double>(loss) * static_cast<double>(all),
                                   static_cast<double>(plain[1]), static_cast<double>(plain[2])},
                                  torch::kFloat64),
          .own_loss = own_loss_,
          .images = all};
}

void ShardedBatch::forward_done(const torch::Tensor& loss, const torch::Tensor& counts) {
  own_loss_ = own_loss_.defined() ? own_loss_ + loss.detach() : loss.detach();
  statistics_.take(host_figures_.data_ptr<float>());
  float* const plain = plain_figures();
  plain[0] = loss.item<float>();
  plain[1] = counts[1].item<float>();
  plain[2] = counts[2].item<float>();
  if (!figures_.is_cpu()) figures_.copy_(host_figures_);
  if (!reducing_) return;
  sums_.complete_figures(figures_);
  // Ahead of the buckets, on every rank: after them it would be one more wait for the others.
  queue_->all_reduce(figures_.data_ptr(), static_cast<std::size_t>(figures_.numel()),
                     worker::DataType::Float32, worker::ReduceOp::Sum);
}

void ShardedBatch::reduce_after_backward() {
  if (exchange_) {
    if (!total_) total_ = sums_.make_sum();
    std::vector<torch::Tensor> own;
    for (const FlatSum& sum : sums_.sums()) own.push_back(sum.flat);
    const auto begun = std::chrono::steady_clock::now();
    exchange_->run(own, total_->flat);
    exposed_ += std::chrono::steady_clock::now() - begun;
  }
  const FlatSum& total = exchange_ ? *total_ : sums_.sums().front();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].mutable_grad() = total.gradients[i];
  }
  figures_.copy_(total.figures);
}

void ShardedBatch::divide_gradients() {
  const torch::NoGradGuard no_grad;
  if (!reduces_in_backward()) {
    torch::Tensor all = exchange_ ? total_->all_gradients : sums_.sums().front().all_gradients;
    all.div_(shards_);
  } else if (world_size_ != shards_) {  // Otherwise the reduction has divided them.
    for (const torch::Tensor& parameter : parameters_) parameter.grad().div_(shards_);
  }
}

}  // namespace ddprun::trainer
