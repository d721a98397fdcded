// What an update of ResNet-50's parameters takes on a GPU: LibTorch's fused SGD beside the kernel
// of
// --fused-optimizer, in turns. Prints JSON: microseconds on the device and of the host, of one
// step.
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/models/model_zoo.h"
#include "trainer/optimizer/sgd.h"
#include "worker/communicator_modules.h"

using namespace ddprun::trainer;

namespace {

constexpr int rounds = 5, steps = 100;

struct Cost {
  std::vector<double> device_us, host_us;
};

double since_us(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun)
      .count();
}

void measure(Sgd& optimizer, Cost& cost) {
  torch::cuda::synchronize();
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) optimizer.step(1e-6);
  cost.host_us.push_back(since_us(begun) / steps);
  torch::cuda::synchronize();
  cost.device_us.push_back(since_us(begun) / steps);
}

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int measure_all() {
  ddprun::worker::open_cuda_module();
  if (!torch::cuda::is_available()) {
    std::cerr << "sgd_costs: LibTorch finds no usable GPU\n";
    return 1;
  }
  const torch::Device gpu(torch::kCUDA, 0);
  const auto model = make_model({.name = "resnet50", .input_channels = 3, .image_size = 224});
  model->to(gpu);
  std::vector<std::pair<std::string, torch::Tensor>> parameters;
  for (const auto& entry : model->named_parameters()) {
    entry.value().mutable_grad() = torch::ones_like(entry.value());
    parameters.emplace_back(entry.key(), entry.value());
  }
  Sgd libtorch(parameters, {.momentum = 0.9, .weight_decay = 1e-4});
  Sgd own(parameters, {.momentum = 0.9, .weight_decay = 1e-4, .own_kernel = true});
  Cost libtorch_cost, own_cost;
  for (int round = 0; round <= rounds; ++round) {
    measure(libtorch, libtorch_cost);
    measure(own, own_cost);
    if (round == 0) libtorch_cost = own_cost = {};  // That one warmed up.
  }
  std::cout << nlohmann::json{{"LibTorch's update, us", middle(libtorch_cost.device_us)},
                              {"LibTorch's update, host's us", middle(libtorch_cost.host_us)},
                              {"own update, us", middle(own_cost.device_us)},
                              {"own update, host's us", middle(own_cost.host_us)}}
            << std::endl;
  return 0;
}

}  // namespace

int main() {
  try {
    return measure_all();
  } catch (const std::exception& error) {
    std::cerr << "sgd_costs: " << error.what() << '\n';
    return 1;
  }
}
