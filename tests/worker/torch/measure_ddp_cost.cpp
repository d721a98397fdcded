// What DistributedDataParallel costs a step: ResNet-18's shapes on synthetic 32-pixel images, one
// thread, with and without it, in turns. Not a test; the figures are for
// docs/measurements/training.md.
//
//   measure_ddp_cost [batch] [steps]                     one process: bare, wrapped, reducing alone
//   ddprun --nproc-per-node 2 measure_ddp_cost           each rank alone, then together
#include <malloc.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <utility>
#include <vector>

#include "worker/communicator.h"
#include "worker/torch/distributed_data_parallel.h"
#include "worker/torch/libtorch.h"

namespace {

using namespace ddprun::worker;
using torch::nn::BatchNorm2d;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;

Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride) {
  return Conv2d(Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

struct BlockImpl : torch::nn::Module {
  BlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
      : conv1(register_module("conv1", conv(in, out, 3, stride))),
        conv2(register_module("conv2", conv(out, out, 3, 1))),
        bn1(register_module("bn1", BatchNorm2d(out))),
        bn2(register_module("bn2", BatchNorm2d(out))) {
    if (in == out) return;
    shortcut = register_module("shortcut", conv(in, out, 1, stride));
    shortcut_bn = register_module("shortcut_bn", BatchNorm2d(out));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = bn2(conv2(bn1(conv1(x)).relu_()));
    return (y + (shortcut.is_empty() ? x : shortcut_bn(shortcut(x)))).relu_();
  }
  Conv2d conv1, conv2, shortcut{nullptr};
  BatchNorm2d bn1, bn2, shortcut_bn{nullptr};
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    stem = register_module("stem", conv(3, 64, 7, 2));
    bn = register_module("bn", BatchNorm2d(64));
    std::int64_t in = 64;
    for (const std::int64_t out : {64, 128, 256, 512}) {
      blocks->push_back(Block(in, out, in == out ? 1 : 2));
      blocks->push_back(Block(out, out, 1));
      in = out;
    }
    register_module("blocks", blocks);
    fc = register_module("fc", torch::nn::Linear(512, 1000));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor pooled = torch::max_pool2d(bn(stem(x)).relu_(), 3, 2, 1);
    return fc(blocks->forward(pooled).mean({2, 3}));
  }
  Conv2d stem{nullptr};
  BatchNorm2d bn{nullptr};
  torch::nn::Sequential blocks;
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Net);

// One way to train, and what each of its steps took.
struct Variant {
  Variant(const char* variant_name, Net net, std::function<at::Tensor(const at::Tensor&)> f,
          std::function<void()> clear)
      : name(variant_name),
        optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)),
        forward(std::move(f)),
        zero_grad(std::move(clear)) {}

  void step(const at::Tensor& images, const at::Tensor& labels, bool counts) {
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t cpu_start = std::clock();
    zero_grad();
    torch::nn::functional::cross_entropy(forward(images), labels).backward();
    optimizer.step();
    if (!counts) return;
    const std::chrono::duration<double, std::milli> wall = std::chrono::steady_clock::now() - start;
    wall_ms.push_back(wall.count());
    cpu_ms.push_back(1e3 * static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC);
  }

  const char* name;
  torch::optim::SGD optimizer;
  std::function<at::Tensor(const at::Tensor&)> forward;
  std::function<void()> zero_grad;
  std::vector<double> wall_ms;
  std::vector<double> cpu_ms;  // Of all threads.
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void keep_memory() {  // Otherwise every large tensor is mapped and faulted in anew.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace

int main(int argc, char** argv) {
  keep_memory();
  at::set_num_threads(1);
  at::globalContext().setFlushDenormal(true);
  const std::int64_t batch = argc > 1 ? std::atoll(argv[1]) : 64;
  const int steps = argc > 2 ? std::atoi(argv[2]) : 40;
  constexpr int warm_up = 3;

  const WorkerEnv env = read_worker_env();
  const auto communicator = make_cpu_communicator(env);
  DataParallelOptions options;
  options.reduce_world_of_one = true;
  Net bare, plain;
  DistributedDataParallel ddp(plain, *communicator, options);
  const at::Tensor images = torch::randn({batch, 3, 32, 32});
  const at::Tensor labels = torch::randint(1000, {batch}, torch::kLong);
  const auto reducing_forward = [&](const at::Tensor& x) { return ddp.forward(x); };
  std::vector<Variant> variants;
  variants.emplace_back(
      "bare", bare, [&](const at::Tensor& x) { return bare->forward(x); },
      [&] { bare->zero_grad(); });
  variants.emplace_back("DDP", plain, reducing_forward, [&] { ddp.zero_grad(true); });
  variants.emplace_back("DDP, zeroed", plain, reducing_forward, [&] { ddp.zero_grad(false); });
  for (int i = 0; i < warm_up + steps; ++i) {
    for (Variant& variant : variants) {  // In turns, so that the machine's moods meet all alike.
      communicator->barrier();
      variant.step(images, labels, i >= warm_up);
    }
  }
  if (env.rank > 0) return 0;
  std::printf("%s, batch %lld, %d steps each; median ms per step\n",
              communicator->description().c_str(), static_cast<long long>(batch), steps);
  for (const Variant& variant : variants) {
    const double ratio = median(variant.wall_ms) / median(variants[0].wall_ms);
    std::printf("%-12s wall %8.2f (%+5.1f %%)  cpu %8.2f\n", variant.name, median(variant.wall_ms),
                100 * (ratio - 1), median(variant.cpu_ms));
  }
  const std::chrono::duration<double, std::milli> exposed = ddp.exposed_communication();
  std::printf("exposed communication %.2f ms per DDP step\n",
              exposed.count() / (2.0 * (warm_up + steps)));
  return 0;
}
