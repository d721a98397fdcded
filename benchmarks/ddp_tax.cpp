// What DistributedDataParallel takes of a step beside what it exchanges: its hooks, its buckets and
// the communicator's calls, in a world of one that reduces nevertheless. Forward and backward of
// ResNet-50 at 224 pixels in bf16, beside the same model without the wrapper, in turns. Prints
// JSON. With the argument "cpu" a ResNet-18 at 32 pixels on the CPU, to try this file.
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/models/model_zoo.h"
#include "trainer/optimizer/precision.h"
#include "worker/communicator.h"
#include "worker/torch/distributed_data_parallel.h"

using namespace ddprun;
using trainer::ImageClassifier;

namespace {

constexpr int rounds = 7;

struct Work {
  std::string model;
  std::int64_t side, batch;
  int steps;  // Of a round.
};

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::shared_ptr<ImageClassifier> make(const Work& work, torch::Device device) {
  auto model = trainer::make_model({.name = work.model, .image_size = work.side});
  model->to(device);
  for (torch::Tensor& parameter : model->parameters()) {
    if (parameter.dim() != 4) continue;
    parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
  }
  return model;
}

class Steps {
 public:
  Steps(const Work& work, torch::Device device)
      : steps_(work.steps),
        device_(device),
        images_(torch::randn({work.batch, 3, work.side, work.side}, device)
                    .contiguous(torch::MemoryFormat::ChannelsLast)),
        labels_(torch::randint(1000, {work.batch}, device).to(torch::kLong)) {}

  // Milliseconds a step, of a round; `model` is one, or the wrapper of one.
  template <class Model, class Clear>
  double round_ms(Model& model, const Clear& clear) const {
    wait();
    const auto begun = std::chrono::steady_clock::now();
    for (int step = 0; step < steps_; ++step) {
      clear();
      torch::Tensor loss;
      {
        const trainer::AutocastGuard autocast(device_.type(), trainer::PrecisionOption::Bf16);
        loss = torch::cross_entropy_loss(model.forward(images_).to(torch::kFloat32), labels_);
      }
      loss.backward();
    }
    wait();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begun;
    return took.count() / steps_;
  }

 private:
  void wait() const {
    if (device_.is_cuda()) torch::cuda::synchronize();
  }

  int steps_;
  torch::Device device_;
  torch::Tensor images_, labels_;
};

int measure(bool cpu) {
  const worker::WorkerEnv alone;
  const auto communicator =
      cpu ? worker::make_cpu_communicator(alone) : worker::make_nccl_communicator(alone);
  const torch::Device device(cpu ? torch::kCPU : torch::kCUDA, 0);
  const Work work = cpu ? Work{"resnet18", 32, 8, 3} : Work{"resnet50", 224, 256, 20};
  const auto model = make(work, device), wrapped = make(work, device);
  worker::DataParallelOptions options;
  options.reduce_world_of_one = true;
  worker::DistributedDataParallel ddp(wrapped, *communicator, options);

  const Steps steps(work, device);
  std::vector<double> plain, reduced;
  for (int round = 0; round <= rounds; ++round) {
    plain.push_back(steps.round_ms(*model, [&] { model->zero_grad(); }));
    reduced.push_back(steps.round_ms(ddp, [&] { ddp.zero_grad(); }));
    if (round == 0) plain.clear(), reduced.clear();  // That one warmed up.
  }
  const double without = middle(plain), with = middle(reduced);
  std::cout << nlohmann::json{{"ms without", without},
                              {"ms with DistributedDataParallel", with},
                              {"tax, %", 100 * (with / without - 1)}}
            << std::endl;
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return measure(count > 1 && std::string(arguments[1]) == "cpu");
  } catch (const std::exception& error) {
    std::cerr << "ddp_tax: " << error.what() << '\n';
    return 1;
  }
}
