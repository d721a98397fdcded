// Shards on a device that promises no bits (a GPU): each step has the same samples on any number of
// ranks, and the weights are those of one rank up to rounding. Here on the CPU, over a communicator
// that adds in the order of the ranks, which is not that of the tree.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/testing/catch.h"
#include "tests/worker/torch/thread_communicator.h"
#include "trainer/report/meters.h"
#include "trainer/shards/sharded_batch.h"
#include "worker/torch/sync_batch_norm.h"

namespace ddprun::trainer {
namespace {

using worker::ThreadCommunicator;

constexpr int shard_count = 4;
constexpr int step_count = 6;
constexpr std::int64_t shard_size = 3;
constexpr double learning_rate = 0.1;
// Of float32 sums in another order over six steps; measured: 3e-8 at most.
constexpr double tolerance = 1e-6;

struct NormedNetImpl : torch::nn::Module {
  NormedNetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(3, 8, 3));
    norm = register_module("norm", worker::SyncBatchNorm2d(torch::nn::BatchNormOptions(8)));
    head = register_module("head", torch::nn::Linear(8, 7));
  }
  torch::Tensor forward(const torch::Tensor& images) {
    return head(norm(conv(images)).relu().mean({2, 3}));
  }
  torch::nn::Conv2d conv{nullptr};
  worker::SyncBatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(NormedNet);

NormedNet new_net() {
  return worker::seeded(5, [] { return NormedNet(); });
}

std::vector<torch::Tensor> state_of(const NormedNet& net) {
  std::vector<torch::Tensor> state;
  for (const torch::Tensor& tensor : net->parameters()) state.push_back(tensor.detach());
  for (const torch::Tensor& tensor : net->buffers()) state.push_back(tensor);
  return state;
}

double largest_difference(const NormedNet& net, const NormedNet& other) {
  double largest = 0;
  const auto a = state_of(net), b = state_of(other);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto apart = (a[i].to(torch::kFloat64) - b[i].to(torch::kFloat64)).abs().max();
    largest = std::max(largest, apart.item<double>());
  }
  return largest;
}

bool same_bits(const NormedNet& net, const NormedNet& other) {
  const auto a = state_of(net), b = state_of(other);
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& left, const auto& right) { return torch::equal(left, right); });
}

// Sample i of the run is an image of its own; a step has those of its shards one after the other.
torch::Tensor images_of(int step, int shard) {
  std::vector<torch::Tensor> images;
  for (std::int64_t i = 0; i < shard_size; ++i) {
    const auto sample = (step * shard_count + shard) * shard_size + i;
    const at::Generator generator =
        at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(sample));
    images.push_back(at::randn({3, 6, 6}, generator));
  }
  return torch::stack(images);
}

torch::Tensor labels_of(int step, int shard) {
  return (torch::arange(shard_size) + step + 2 * shard) % 7;
}

struct Ran {
  std::vector<NormedNet> nets;                 // By rank.
  std::map<std::pair<int, int>, int> batches;  // By step and shard: how often it was computed with.
  std::vector<double> losses;                  // By step, of rank 0.
};

struct StepsOf {
  int begin = 0, end = step_count;
  int dying_rank = -1, dies_at = -1;  // In the forward of its last shard.
};

// One rank's training. `note` is told of each step's end.
class Rank {
 public:
  Rank(ThreadCommunicator& communicator, NormedNet net)
      : communicator_(communicator),
        net_(std::move(net)),
        sharded_(*net_, communicator, even_shares(shard_count, communicator.world_size()),
                 ShardedBatch::Sums::AnyBits) {
    worker::DataParallelOptions options;
    options.buckets = {64, 512, 256};  // Several.
    sharded_.prepare(options);
    parallel_ = std::make_unique<worker::DistributedDataParallel<NormedNetImpl>>(net_, communicator,
                                                                                 options);
  }

  ShardRange own() const { return sharded_.own(); }

  double step(int step, bool dies) {
    std::vector<torch::Tensor> images, labels;
    for (int shard = own().first; shard < own().end; ++shard) {
      images.push_back(images_of(step, shard));
      labels.push_back(labels_of(step, shard));
    }
    parallel_->zero_grad();
    const auto figures = sharded_.run(
        *parallel_, torch::cat(images), torch::cat(labels),
        [&](int shard, const torch::Tensor& of_images, const torch::Tensor& of_labels) {
          RANK_CHECK(torch::equal(of_images, images_of(step, shard)));
          if (dies && shard + 1 == own().end) throw std::runtime_error("it died");
          sharded_.begin_micro_batch();
          const torch::Tensor logits = parallel_->forward(of_images);
          const torch::Tensor loss = torch::cross_entropy_loss(logits, of_labels);
          sharded_.forward_done(loss, batch_counts(logits.detach(), of_labels, loss.detach()));
          loss.backward();
        });
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : net_->parameters()) {
      parameter.sub_(parameter.grad(), learning_rate);
    }
    RANK_CHECK(figures.images == shard_count * shard_size);
    return figures.loss.item<double>();
  }

  // Gradients lie in memory of the communicator.
  void leave() {
    for (torch::Tensor& parameter : net_->parameters()) parameter.mutable_grad().reset();
  }

 private:
  ThreadCommunicator& communicator_;
  NormedNet net_;
  ShardedBatch sharded_;
  std::unique_ptr<worker::DistributedDataParallel<NormedNetImpl>> parallel_;
};

// Steps of a world, one rank for each net; what is done is added to `ran`.
void train(Ran& ran, const StepsOf& steps) {
  std::mutex mutex;
  const auto body = [&](ThreadCommunicator& communicator) {
    const int own_rank = communicator.rank();
    const NormedNet& net = ran.nets[static_cast<std::size_t>(own_rank)];
    Rank rank(communicator, net);
    try {
      for (int step = steps.begin; step < steps.end; ++step) {
        const double loss = rank.step(step, own_rank == steps.dying_rank && step == steps.dies_at);
        const std::lock_guard lock(mutex);
        for (int shard = rank.own().first; shard < rank.own().end; ++shard) {
          ++ran.batches[{step, shard}];
        }
        if (own_rank == 0) ran.losses.push_back(loss);
      }
    } catch (...) {
      rank.leave();
      throw;
    }
    rank.leave();
  };
  const int world = static_cast<int>(ran.nets.size());
  if (steps.dying_rank < 0) return worker::run_ranks_well(world, body);
  for (const auto& error : worker::run_ranks(world, body)) REQUIRE(error);
}

Ran begun(int world) {
  Ran ran;
  for (int rank = 0; rank < world; ++rank) ran.nets.push_back(new_net());
  return ran;
}

void check_same_run(const Ran& ran, const Ran& alone) {
  REQUIRE(ran.batches.size() == static_cast<std::size_t>(step_count * shard_count));
  for (const auto& [batch, times] : ran.batches) CHECK(times == 1);
  for (const NormedNet& net : ran.nets) CHECK(same_bits(net, ran.nets.front()));
  const double apart = largest_difference(ran.nets.front(), alone.nets.front());
  CAPTURE(apart);
  CHECK(apart < tolerance);
  REQUIRE(ran.losses.size() == alone.losses.size());
  for (std::size_t i = 0; i < ran.losses.size(); ++i) {
    CHECK(std::abs(ran.losses[i] - alone.losses[i]) < tolerance);
  }
}

}  // namespace

TEST_CASE("without a promise of bits a step has the same samples and nearly the same weights",
          "[trainer][shards]") {
  Ran alone = begun(1);
  train(alone, {});
  CHECK(largest_difference(alone.nets.front(), new_net()) > 1e-2);  // It has learnt.
  for (const int world : {2, 3, 4}) {
    CAPTURE(world);
    Ran ran = begun(world);
    train(ran, {});
    check_same_run(ran, alone);
  }
}

TEST_CASE("16.3: without a promise of bits those that are left redo the step, and go on",
          "[trainer][shards][recovery]") {
  Ran alone = begun(1);
  train(alone, {});
  for (const int victim : {0, 1, 2}) {
    CAPTURE(victim);
    Ran ran = begun(3);
    constexpr int last = 3;
    train(ran, {.dying_rank = victim, .dies_at = last});
    ran.nets.erase(ran.nets.begin() + victim);
    for (const NormedNet& net : ran.nets) CHECK(same_bits(net, ran.nets.front()));
    train(ran, {.begin = last});
    check_same_run(ran, alone);
  }
}

}  // namespace ddprun::trainer
