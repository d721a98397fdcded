// What winograd_conv() costs beside LibTorch's convolution (oneDNN), one thread, in turns, for the
// 3 x 3 convolutions of ResNets; and how far both are from the results in double precision,
// relative to their size (root mean squares). Not a test; the figures are for
// docs/measurements/convolutions.md. In bf16 the images are bfloat16, and so is oneDNN's weight:
// that autocast has to make it each time is not counted.
//
//   measure_winograd [rounds] [part of the first column]
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "trainer/models/winograd_conv.h"
#include "worker/torch/libtorch.h"

namespace {

using torch::Tensor;

constexpr auto channels_last = torch::MemoryFormat::ChannelsLast;

struct Layer {
  const char* model;
  std::int64_t batch, channels, side;
};

constexpr Layer layers[] = {
    {"ResNet-18, 224 px", 16, 64, 56},
    {"ResNet-18, 224 px", 16, 128, 28},
    {"ResNet-18, 224 px", 16, 256, 14},
    {"ResNet-18, 224 px", 16, 512, 7},
    {"ResNet-18, 32 px", 64, 64, 8},
    {"ResNet-18, 32 px", 64, 128, 4},
    {"ResNet-18, 32 px", 64, 256, 2},
    {"ResNet-50, 224 px", 8, 64, 56},
    {"ResNet-50, 224 px", 8, 128, 28},
    {"ResNet-50, 224 px", 8, 256, 14},
    {"ResNet-50, 224 px", 8, 512, 7},
    {"CIFAR ResNet", 64, 16, 32},
    {"CIFAR ResNet", 64, 32, 16},
    {"CIFAR ResNet", 64, 64, 8},
    {"few tiles", 1, 512, 7},
    {"few tiles", 1, 256, 14},
    {"few tiles", 8, 256, 2},
    {"few tiles", 1, 256, 2},
    {"few tiles", 1, 16, 8},
    {"small images", 128, 512, 2},
    {"small images", 64, 64, 2},
    {"small images", 64, 64, 5},
    {"small images", 16, 512, 5},
    {"small images", 64, 512, 1},
};

enum Pass { forward, input_gradient, weight_gradient, passes };
constexpr const char* pass_names[] = {"forward", "input's gradient", "weights' gradient"};

class Timer {
 public:
  double ms() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Runs the passes, each by itself; returns what they took.
struct Side {
  std::function<Tensor(const Tensor&, const Tensor&)> conv;
  torch::ScalarType image_type, weight_type;
  std::vector<double> ms[passes] = {};
  Tensor results[passes] = {};

  void run(const Tensor& x, const Tensor& weight, const Tensor& direction) {
    const Tensor image = x.to(image_type).detach().requires_grad_();
    const Tensor taps = weight.to(weight_type).detach().requires_grad_();
    const Tensor gradient = direction.to(image_type);
    const Timer whole;
    results[forward] = conv(image, taps.detach()).detach();
    ms[forward].push_back(whole.ms());
    const Tensor for_input = conv(image, taps.detach());
    const Timer input;
    results[input_gradient] = torch::autograd::grad({for_input}, {image}, {gradient})[0];
    ms[input_gradient].push_back(input.ms());
    const Tensor for_weight = conv(image.detach(), taps);
    const Timer weights;
    results[weight_gradient] = torch::autograd::grad({for_weight}, {taps}, {gradient})[0];
    ms[weight_gradient].push_back(weights.ms());
  }
};

double rms(const Tensor& values) { return values.square().mean().sqrt().item<double>(); }

double relative_error(const Tensor& found, const Tensor& exact) {
  return rms(found.to(torch::kFloat64) - exact) / rms(exact);
}

void measure(const Layer& layer, const std::string& model, torch::ScalarType type, int rounds) {
  const auto values = [](std::vector<std::int64_t> sizes) {
    return torch::randn(sizes).contiguous(channels_last);
  };
  const std::int64_t c = layer.channels;
  const Tensor x = values({layer.batch, c, layer.side, layer.side}).relu_().to(type);
  const Tensor weight = values({c, c, 3, 3}) * 0.05;
  const Tensor direction = values(x.sizes().vec()).to(type);
  Side ours{ddprun::trainer::winograd_conv, type, torch::kFloat32};
  const auto plain_conv = [](const Tensor& image, const Tensor& taps) {
    return torch::conv2d(image, taps, {}, 1, 1);
  };
  Side plain{plain_conv, type, type};
  for (int i = 0; i < rounds; ++i) {  // In turns, so that the machine's moods meet both alike.
    ours.run(x, weight, direction);
    plain.run(x, weight, direction);
  }
  Side exact{plain_conv, torch::kFloat64, torch::kFloat64};
  exact.run(x, weight, direction);

  double sum = 0, plain_sum = 0;
  const std::string name = std::to_string(c) + " channels, " + std::to_string(layer.side) + " x " +
                           std::to_string(layer.side) + ", batch " + std::to_string(layer.batch);
  for (int pass = 0; pass < passes; ++pass) {
    const double ms = median(ours.ms[pass]), plain_ms = median(plain.ms[pass]);
    sum += ms;
    plain_sum += plain_ms;
    std::printf("| %s | %s | %s | %.2f | %.2f | %.2f x | %.1e | %.1e |\n", model.c_str(),
                name.c_str(), pass_names[pass], ms, plain_ms, plain_ms / ms,
                relative_error(ours.results[pass], exact.results[pass]),
                relative_error(plain.results[pass], exact.results[pass]));
  }
  std::printf("| %s | %s | together | %.2f | %.2f | %.2f x | | |\n", model.c_str(), name.c_str(),
              sum, plain_sum, plain_sum / sum);
}

}  // namespace

int main(int argc, char** argv) {
  mallopt(M_MMAP_MAX, 0);  // Otherwise every large tensor is mapped and faulted in anew.
  mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  mallopt(M_TOP_PAD, 64 << 20);
  at::set_num_threads(1);
  torch::manual_seed(1);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  const std::string wanted = argc > 2 ? argv[2] : "";
  std::printf("| model | layer | pass | ms | oneDNN, ms | gain | error | oneDNN's |\n");
  std::printf("|---|---|---|---:|---:|---:|---:|---:|\n");
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    for (const Layer& layer : layers) {
      const std::string model = layer.model + std::string(type == torch::kFloat32 ? "" : ", bf16");
      if (model.find(wanted) != std::string::npos) measure(layer, model, type, rounds);
    }
  }
  return 0;
}
