// The update of a step against LibTorch's on the CPU, on every element, with the loss scale that
// stays on the device: on the CPU as loops over the device's own index arithmetic, and on a GPU,
// where there is one, with the bits of these loops.
#include "trainer/kernels/device/sgd_kernel.h"

#include <cstring>
#include <limits>

#include "tests/testing/catch.h"
#include "tests/trainer/kernels/device_memory.h"
#include "trainer/kernels/device/step_kernels.h"
#include "trainer/optimizer/loss_scaler.h"
#include "worker/torch/libtorch.h"

using namespace ddprun::trainer;
using namespace ddprun::trainer::testing;

namespace {

// Segments and chunks in the memory of the device.
template <typename Segment>
struct Table {
  Table(torch::Device device, const std::vector<Segment>& all) {
    std::vector<std::int64_t> counts;
    for (const Segment& segment : all) counts.push_back(segment.count);
    const std::vector<SegmentChunk> chunked = chunks_of(counts);
    segments = bytes_on(device, all);
    chunks = bytes_on(device, chunked);
    chunk_count = static_cast<std::int64_t>(chunked.size());
  }
  template <typename Pass>
  void put_into(Pass& pass) const {
    pass.segments = static_cast<const Segment*>(segments.data_ptr());
    pass.chunks = static_cast<const SegmentChunk*>(chunks.data_ptr());
    pass.chunk_count = chunk_count;
  }
  torch::Tensor segments, chunks;
  std::int64_t chunk_count = 0;
};

struct Recipe {
  float momentum;
  float dampening;
  bool nesterov;
  float decay;
  float unscale;  // Of the loss scale; 1: none.
};

struct Trained {
  std::vector<torch::Tensor> weights, momenta, copies;  // On the CPU.
};

// What begins an element later than where a vector does, of every tensor.
struct Later {
  std::int64_t weight = 0, gradient = 0, momentum = 0, copy = 0;
};

// Three steps over tensors of odd sizes, every second one without decay.
Trained train(torch::Device device, const Recipe& recipe, torch::ScalarType copy_type,
              bool rate_on_device, const Later& later = {}) {
  torch::manual_seed(3);
  std::vector<Guarded> weights, momenta, copies;
  for (const std::int64_t size : odd_sizes) {
    weights.emplace_back(device, torch::randn({size}), torch::kFloat32, later.weight);
    momenta.emplace_back(device, torch::zeros({size}), torch::kFloat32, later.momentum);
    copies.emplace_back(device, torch::zeros({size}), copy_type, later.copy);
  }
  const auto scale = bytes_on(device, std::vector<LossScale>{{.inverse = recipe.unscale}});
  for (int step = 0; step < 3; ++step) {
    std::vector<SgdSegment> segments;
    std::vector<Guarded> gradients;
    for (std::size_t i = 0; i < odd_sizes.size(); ++i) {
      gradients.emplace_back(device, torch::randn({odd_sizes[i]}), torch::kFloat32, later.gradient);
      segments.push_back({weights[i].own.data_ptr<float>(), gradients[i].own.data_ptr<float>(),
                          recipe.momentum != 0 ? momenta[i].own.data_ptr<float>() : nullptr,
                          copies[i].own.data_ptr(), odd_sizes[i], i % 2 == 0 ? recipe.decay : 0.0F,
                          step == 0 ? 1 : 0});
    }
    const Table<SgdSegment> table(device, segments);
    const float rate = 0.1F / static_cast<float>(step + 1);
    const torch::Tensor rate_there = torch::full({1}, rate).to(device);
    SgdPass pass{.learning_rate_at = rate_on_device ? rate_there.data_ptr<float>() : nullptr,
                 .learning_rate = rate_on_device ? 99.0F : rate,
                 .momentum = recipe.momentum,
                 .dampening = recipe.dampening,
                 .nesterov = recipe.nesterov,
                 .copy_format = copy_type == torch::kHalf       ? NumberFormat::Float16
                                : copy_type == torch::kBFloat16 ? NumberFormat::BFloat16
                                                                : NumberFormat::Float32};
    if (recipe.unscale != 1) pass.scale = static_cast<const LossScale*>(scale.data_ptr());
    table.put_into(pass);
    run_kernel(step_kernels(device.is_cuda()).sgd, pass, stream_of(device));
    wait_for(device);  // The table goes with its scope.
  }
  Trained result;
  for (std::size_t i = 0; i < odd_sizes.size(); ++i) {
    CHECK(weights[i].whole());
    CHECK(momenta[i].whole());
    CHECK(copies[i].whole());
    result.weights.push_back(weights[i].own.cpu());
    result.momenta.push_back(momenta[i].own.cpu());
    result.copies.push_back(copies[i].own.cpu());
  }
  return result;
}

// The same by LibTorch's own kernel.
Trained train_by_libtorch(const Recipe& recipe) {
  torch::manual_seed(3);
  Trained result;
  for (const std::int64_t size : odd_sizes) {
    result.weights.push_back(torch::randn({size}));
    result.momenta.push_back(torch::zeros({size}));
  }
  for (int step = 0; step < 3; ++step) {
    std::vector<torch::Tensor> gradients;
    for (const std::int64_t size : odd_sizes) {
      gradients.push_back(torch::randn({size}) * recipe.unscale);
    }
    for (std::size_t i = 0; i < odd_sizes.size(); ++i) {
      std::vector<torch::Tensor> momenta;
      if (recipe.momentum != 0) momenta.push_back(result.momenta[i]);
      at::_fused_sgd_({result.weights[i]}, {gradients[i]}, momenta, i % 2 == 0 ? recipe.decay : 0,
                      recipe.momentum, 0.1 / (step + 1), recipe.dampening, recipe.nesterov,
                      /*maximize=*/false, /*is_first_step=*/step == 0);
    }
  }
  return result;
}

const std::vector<Recipe> recipes{{0, 0, false, 0, 1},          {0, 0, false, 0.1F, 1},
                                  {0.9F, 0, false, 0.1F, 1},    {0.9F, 0, true, 0.1F, 1},
                                  {0.9F, 0.3F, false, 0.1F, 1}, {0.9F, 0, true, 0.1F, 1.0F / 1024}};

}  // namespace

TEST_CASE("SGD in one pass is LibTorch's", "[step-kernels][sgd]") {
  for (const Recipe& recipe : recipes) {
    INFO(recipe.momentum << ' ' << recipe.dampening << ' ' << recipe.nesterov << ' ' << recipe.decay
                         << ' ' << recipe.unscale);
    const Trained expected = train_by_libtorch(recipe);
    for (const bool rate_on_device : {false, true}) {
      const Trained own = train(torch::kCPU, recipe, torch::kBFloat16, rate_on_device);
      for (std::size_t i = 0; i < odd_sizes.size(); ++i) {
        CHECK(torch::allclose(own.weights[i], expected.weights[i], 1e-6, 1e-6));
        if (recipe.momentum != 0) {
          CHECK(torch::allclose(own.momenta[i], expected.momenta[i], 1e-6, 1e-6));
        }
      }
    }
  }
}

TEST_CASE("SGD has the same bits wherever its tensors begin", "[step-kernels][sgd]") {
  const auto on = [](const torch::Device& device, torch::ScalarType type, const Later& later) {
    return train(device, recipes.back(), type, false, later);
  };
  std::vector<torch::Device> devices{torch::kCPU};
  if (no_gpu().empty()) devices.emplace_back(torch::kCUDA, 0);
  for (const auto type : {torch::kFloat32, torch::kHalf}) {
    const Trained expected = on(torch::kCPU, type, {});
    for (const torch::Device& device : devices) {
      for (const Later& later : {Later{.weight = 1}, Later{.gradient = 1}, Later{.momentum = 1},
                                 Later{.copy = 1}, Later{1, 1, 1, 1}}) {
        const Trained own = on(device, type, later);
        for (std::size_t i = 0; i < odd_sizes.size(); ++i) {
          CHECK(torch::equal(own.weights[i], expected.weights[i]));
          CHECK(torch::equal(own.momenta[i], expected.momenta[i]));
          CHECK(torch::equal(own.copies[i], expected.copies[i]));
        }
      }
    }
  }
}

TEST_CASE("the working copy is the rounded weight", "[step-kernels][sgd]") {
  for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
    const Trained own = train(torch::kCPU, recipes.back(), type, false);
    for (std::size_t i = 0; i < odd_sizes.size(); ++i) {
      CHECK(torch::equal(own.copies[i], own.weights[i].to(type)));
    }
  }
}

TEST_CASE("one gradient that is not finite, wherever it is, leaves all as it was",
          "[step-kernels][sgd]") {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    // The last one begins an element later than a vector does.
    for (const std::int64_t at : {0, 255, 256, 4096, 9000, 9001}) {
      torch::Tensor weight = torch::ones({9001});
      torch::Tensor gradient = torch::full({9002}, std::numeric_limits<float>::max());
      gradient = at == 9001 ? gradient.slice(0, 1) : gradient.slice(0, 0, 9001);
      const Table<SgdSegment> table(torch::kCPU,
                                    std::vector<SgdSegment>{{.weight = weight.data_ptr<float>(),
                                                             .gradient = gradient.data_ptr<float>(),
                                                             .count = 9001}});
      LossScale scale;
      SgdPass pass{.scale = &scale, .learning_rate = 1};
      table.put_into(pass);
      const StepKernels& kernels = host_step_kernels();
      run_kernel(kernels.find_overflow, pass, &scale, nullptr);
      CHECK(scale.overflow == 0);
      gradient[std::min<std::int64_t>(at, 9000)] = bad;
      run_kernel(kernels.find_overflow, pass, &scale, nullptr);
      CHECK(scale.overflow == 1);
      run_kernel(kernels.sgd, pass, nullptr);
      CHECK(torch::equal(weight, torch::ones({9001})));
      run_kernel(kernels.advance_scale, &scale, LossScaleRule{}, nullptr);
      CHECK(scale.overflow == 0);
      CHECK(scale.scale == 32768);
      CHECK(scale.skipped == 1);
    }
  }
}

TEST_CASE("the loss scale on the device goes through the loss scaler's states",
          "[step-kernels][sgd]") {
  LossScaler scaler({.growth_interval = 5});
  LossScale own;
  const LossScaleRule rule{.growth_interval = 5};
  std::uint32_t number = 1;
  std::int32_t in_a_row = 0;
  for (int step = 0; step < 3000; ++step) {
    number = number * 1664525 + 1013904223;
    // Long rows without any: up to where the scale would be infinite, and on.
    const bool overflow = step > 1500 && number >> 30 == 0;
    in_a_row = overflow ? in_a_row + 1 : 0;
    const ScaleDecision decision = scaler.decide(!overflow);
    own.overflow = overflow ? 1 : 0;
    run_kernel(host_step_kernels().advance_scale, &own, rule, nullptr);
    REQUIRE(own.scale == decision.scale_after);
    REQUIRE(own.growth_steps == scaler.state().growth_steps);
    REQUIRE(own.skipped == scaler.skipped());
    REQUIRE(own.skipped_in_a_row == in_a_row);
    REQUIRE(own.inverse == static_cast<float>(1.0 / static_cast<double>(own.scale)));
  }
}

TEST_CASE("on a GPU the update has the bits of the loops", "[step-kernels][sgd][gpu]") {
  if (const std::string reason = no_gpu(); !reason.empty()) DDPRUN_SKIP(reason);
  const torch::Device gpu(torch::kCUDA, 0);
  for (const Recipe& recipe : recipes) {
    for (const auto type : {torch::kBFloat16, torch::kHalf}) {
      const Trained there = train(gpu, recipe, type, true);
      const Trained here = train(torch::kCPU, recipe, type, true);
      for (std::size_t i = 0; i < odd_sizes.size(); ++i) {
        CHECK(torch::equal(there.weights[i], here.weights[i]));
        CHECK(torch::equal(there.momenta[i], here.momenta[i]));
        CHECK(torch::equal(there.copies[i], here.copies[i]));
      }
    }
  }
}

TEST_CASE("on a GPU an overflow is found and the scale moves", "[step-kernels][gpu]") {
  if (const std::string reason = no_gpu(); !reason.empty()) DDPRUN_SKIP(reason);
  const torch::Device gpu(torch::kCUDA, 0);
  const StepKernels& kernels = step_kernels(/*cuda=*/true);
  const torch::Tensor weight = torch::ones({9001}, gpu);
  torch::Tensor gradient = torch::ones({9001}, gpu);
  const Table<SgdSegment> table(gpu,
                                std::vector<SgdSegment>{{.weight = weight.data_ptr<float>(),
                                                         .gradient = gradient.data_ptr<float>(),
                                                         .count = 9001}});
  const torch::Tensor state = bytes_on(gpu, std::vector<LossScale>{{}});
  auto* const scale = static_cast<LossScale*>(state.data_ptr());
  SgdPass pass{.scale = scale, .learning_rate = 65536};
  table.put_into(pass);
  for (const float value : {1.0F, std::numeric_limits<float>::infinity()}) {
    gradient[9000] = value;
    run_kernel(kernels.find_overflow, pass, scale, stream_of(gpu));
    run_kernel(kernels.sgd, pass, stream_of(gpu));
    run_kernel(kernels.advance_scale, scale, LossScaleRule{}, stream_of(gpu));
  }
  CHECK(torch::equal(weight.cpu(), torch::zeros({9001})));  // Of the first step alone.
  const torch::Tensor after = state.cpu();
  LossScale last;
  std::memcpy(&last, after.data_ptr(), sizeof last);
  CHECK(last.scale == 32768);
  CHECK(last.skipped == 1);
}
