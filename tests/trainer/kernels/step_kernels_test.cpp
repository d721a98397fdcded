// The kernels of a step against LibTorch on the CPU, on every element: on the CPU as loops over the
// device's own index arithmetic, and on a GPU, where there is one, with the bits of these loops.
#include "trainer/kernels/device/step_kernels.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/testing/catch.h"
#include "tests/trainer/kernels/device_memory.h"
#include "trainer/data/memory_dataset.h"
#include "trainer/data/normalize.h"
#include "trainer/data/resident_samples.h"
#include "trainer/data/sample_maker.h"
#include "trainer/optimizer/loss_scaler.h"
#include "worker/torch/libtorch.h"

using namespace ddprun::trainer;
using namespace ddprun::trainer::testing;

namespace {

// Around a block, a chunk, and several of each.
const std::vector<std::int64_t> odd_sizes{0, 1, 255, 256, 257, 4095, 4096, 4097, 9001};

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

struct Gathered {
  torch::Tensor images, labels;
};

struct ImageCase {
  std::int64_t channels, side;
  bool channels_last;
  NumberFormat format;
};

MemoryDataset random_set(std::int64_t channels, std::int64_t side) {
  MemoryDataset::Contents contents{.shape = {channels, side, side}, .classes = 10};
  for (std::int64_t c = 0; c < channels; ++c) {
    contents.normalization.mean.push_back(0.1F * static_cast<float>(c + 1));
    contents.normalization.deviation.push_back(0.2F + 0.1F * static_cast<float>(c));
  }
  std::uint32_t number = 1;
  for (int image = 0; image < 23; ++image) {
    contents.labels.push_back(static_cast<std::uint8_t>(image % 10));
    for (std::int64_t i = 0; i < contents.shape.bytes(); ++i) {
      number = number * 1664525 + 1013904223;
      contents.pixels.push_back(static_cast<std::uint8_t>(number >> 24));
    }
  }
  return MemoryDataset(std::move(contents));
}

SampleOptions augmented(const Dataset& dataset, std::int64_t side, bool channels_last) {
  SampleOptions options{.transform = {.side = side, .resize_side = side},
                        .normalization = dataset.normalization(),
                        .seed = 5,
                        .epoch = 2,
                        .channels_last = channels_last};
  options.transform.augment.flip = true;
  options.transform.augment.pad_crop = true;  // By up to 4, which may leave nothing of 3 pixels.
  return options;
}

Gathered gather(torch::Device device, const Dataset& dataset, const SampleOptions& options,
                const std::vector<std::int64_t>& indices, NumberFormat format) {
  const auto pixels = bytes_on(device, resident_pixels(dataset));
  const auto labels = bytes_on(device, resident_labels(dataset));
  const auto samples = bytes_on(device, resident_samples(dataset, options, indices));
  const NormalizationTable table(options.normalization);
  const std::int64_t channels = dataset.shape().channels;
  std::vector<float> values(table.of_channel(0), table.of_channel(0) + channels * 256);
  const auto values_there = bytes_on(device, values);
  const auto count = static_cast<std::int64_t>(indices.size());
  const std::int64_t side = options.transform.side;
  const torch::TensorOptions there(device);
  const Guarded images(device, torch::zeros({count * channels * side * side}), type_of(format));
  const torch::Tensor batch_labels = torch::zeros({count}, there.dtype(torch::kInt64));
  const GatherBatch batch{.pixels = pixels.data_ptr<std::uint8_t>(),
                          .labels = static_cast<const std::int64_t*>(labels.data_ptr()),
                          .table = static_cast<const float*>(values_there.data_ptr()),
                          .samples = static_cast<const ResidentSample*>(samples.data_ptr()),
                          .count = count,
                          .channels = static_cast<std::int32_t>(channels),
                          .height = static_cast<std::int32_t>(side),
                          .width = static_cast<std::int32_t>(side),
                          .channels_last = options.channels_last,
                          .format = format,
                          .images = images.own.data_ptr(),
                          .batch_labels = batch_labels.data_ptr<std::int64_t>()};
  run_kernel(step_kernels(device.is_cuda()).gather, batch, stream_of(device));
  wait_for(device);
  CHECK(images.whole());
  return {images.own.cpu(), batch_labels.cpu()};
}

// What the loader makes of the same indices, as flat floats.
Gathered load(const Dataset& dataset, const SampleOptions& options,
              const std::vector<std::int64_t>& indices) {
  SampleMaker maker(dataset, options);
  const std::int64_t elements = dataset.shape().bytes();
  const auto count = static_cast<std::int64_t>(indices.size());
  Gathered result{torch::empty({count * elements}), torch::empty({count}, torch::kInt64)};
  std::vector<SkippedImage> skipped;
  for (std::int64_t i = 0; i < count; ++i) {
    float* const out = result.images.data_ptr<float>() + i * elements;
    const auto sample = maker.make(indices[static_cast<std::size_t>(i)], out, skipped);
    result.labels[i] = sample.value().label;
  }
  return result;
}

const std::vector<std::int64_t> some_indices{22, 0, 7, 7, 13, 1, 2, 19, 21};

torch::Tensor cast(torch::Device device, const torch::Tensor& values, NumberFormat from,
                   NumberFormat to) {
  const torch::Tensor there = values.to(device);
  const Guarded result(device, torch::zeros({values.numel()}), type_of(to));
  // Tensors of odd sizes one after the other, with empty ones among them, and what is left.
  std::vector<CastSegment> segments;
  std::int64_t begin = 0;
  while (begin < values.numel() && segments.size() < cast_segments_max) {
    const bool last = segments.size() + 1 == cast_segments_max;
    const std::int64_t left = values.numel() - begin;
    const std::int64_t count = last ? left : std::min(odd_sizes[segments.size() % 9], left);
    segments.push_back(
        {static_cast<const char*>(there.data_ptr()) + begin * there.element_size(),
         static_cast<char*>(result.own.data_ptr()) + begin * result.own.element_size(), count});
    begin += count;
  }
  run_kernel(step_kernels(device.is_cuda()).cast, cast_pass(segments, from, to), stream_of(device));
  wait_for(device);
  CHECK(result.whole());
  return result.own.cpu();
}

struct NormalizeCase {
  std::int64_t images, channels, plane;
};
// Around a block, with planes of odd sizes, and a batch without images.
const std::vector<NormalizeCase> normalize_cases{{0, 3, 9},   {1, 1, 1},  {1, 3, 85}, {1, 1, 256},
                                                 {1, 1, 257}, {7, 3, 49}, {5, 4, 33}};

torch::Tensor bytes_of(const NormalizeCase& one) {
  torch::manual_seed(5);
  return torch::randint(256, {one.images * one.channels * one.plane}, torch::kUInt8);
}

Normalization normalization_of(const NormalizeCase& one) {
  Normalization result;
  for (std::int64_t channel = 0; channel < one.channels; ++channel) {
    result.mean.push_back(0.1F * static_cast<float>(channel + 1));
    result.deviation.push_back(0.3F + 0.1F * static_cast<float>(channel));
  }
  return result;
}

torch::Tensor normalize(torch::Device device, const NormalizeCase& one, const torch::Tensor& bytes,
                        bool channels_last) {
  const NormalizationTable table(normalization_of(one));
  const torch::Tensor table_there =
      bytes_on(device, std::vector<float>(table.of_channel(0), table.of_channel(one.channels)));
  const torch::Tensor there = bytes.to(device);
  const Guarded images(device, torch::zeros({bytes.numel()}), torch::kFloat32);
  const NormalizeBatch batch{.bytes = there.data_ptr<std::uint8_t>(),
                             .table = static_cast<const float*>(table_there.data_ptr()),
                             .images = images.own.data_ptr<float>(),
                             .elements = bytes.numel(),
                             .plane = one.plane,
                             .channels = static_cast<std::int32_t>(one.channels),
                             .channels_last = channels_last};
  run_kernel(step_kernels(device.is_cuda()).normalize, batch, stream_of(device));
  wait_for(device);
  CHECK(images.whole());
  return images.own.cpu();
}

// Every bit pattern of a format of 16 bits.
torch::Tensor all_patterns(torch::ScalarType type) {
  return torch::arange(0, 65536, torch::kInt32).to(torch::kInt16).view(type);
}

// Equal, or both no number.
bool same(const torch::Tensor& a, const torch::Tensor& b) {
  return torch::equal(a.isnan(), b.isnan()) &&
         torch::equal(a.nan_to_num(0, 1, -1).to(torch::kFloat32),
                      b.nan_to_num(0, 1, -1).to(torch::kFloat32)) &&
         torch::equal(a.isinf(), b.isinf());
}

// Around every rounding decision of both short formats.
torch::Tensor floats_to_round() {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 65536; ++high) {
    for (const std::uint32_t low :
         {0x0000U, 0x0001U, 0x0fffU, 0x1000U, 0x7fffU, 0x8000U, 0x8001U}) {
      const std::uint32_t bits = high << 16 | low;
      float value = 0;
      std::memcpy(&value, &bits, sizeof value);
      values.push_back(value);
    }
  }
  return torch::tensor(values);
}

}  // namespace

TEST_CASE("chunks have every element once", "[step-kernels]") {
  const std::vector<SegmentChunk> chunks = chunks_of(odd_sizes);
  for (std::size_t segment = 0; segment < odd_sizes.size(); ++segment) {
    std::vector<int> seen(static_cast<std::size_t>(odd_sizes[segment]), 0);
    for (const SegmentChunk& chunk : chunks) {
      if (chunk.segment != static_cast<std::int64_t>(segment)) continue;
      for (std::uint32_t thread = 0; thread < kernel_threads; ++thread) {
        for_each_element(chunk, odd_sizes[segment], {0, thread},
                         [&](std::int64_t i) { seen.at(static_cast<std::size_t>(i)) += 1; });
      }
    }
    CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  }
}

TEST_CASE("vectors and what they leave over have every element once", "[step-kernels]") {
  const std::vector<SegmentChunk> chunks = chunks_of(odd_sizes);
  for (std::size_t segment = 0; segment < odd_sizes.size(); ++segment) {
    const std::int64_t count = odd_sizes[segment];
    std::vector<int> seen(static_cast<std::size_t>(count), 0);
    std::int64_t alone = 0;
    for (const SegmentChunk& chunk : chunks) {
      if (chunk.segment != static_cast<std::int64_t>(segment)) continue;
      for (std::uint32_t thread = 0; thread < kernel_threads; ++thread) {
        for_each_vector<8>(
            chunk, count, {0, thread},
            [&](std::int64_t i) {
              CHECK(i % 8 == 0);
              for (int k = 0; k < 8; ++k) seen.at(static_cast<std::size_t>(i + k)) += 1;
            },
            [&](std::int64_t i) {
              seen.at(static_cast<std::size_t>(i)) += 1;
              alone += 1;
            });
      }
    }
    CHECK(alone == count % 8);
    CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  }
}

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

TEST_CASE("a gathered batch has the loader's bits", "[step-kernels][gather]") {
  for (const std::int64_t channels : {1, 3}) {
    for (const std::int64_t side : {3, 9, 17, 32}) {
      const MemoryDataset dataset = random_set(channels, side);
      for (const bool channels_last : {false, true}) {
        INFO(channels << " channels, " << side << " pixels, last: " << channels_last);
        const SampleOptions options = augmented(dataset, side, channels_last);
        const Gathered expected = load(dataset, options, some_indices);
        for (const auto format :
             {NumberFormat::Float32, NumberFormat::BFloat16, NumberFormat::Float16}) {
          const Gathered own = gather(torch::kCPU, dataset, options, some_indices, format);
          CHECK(torch::equal(own.images, expected.images.to(type_of(format))));
          CHECK(torch::equal(own.labels, expected.labels));
        }
      }
    }
  }
}

TEST_CASE("what only the loader can do keeps a set from the device", "[step-kernels][gather]") {
  const MemoryDataset dataset = random_set(3, 8);
  constexpr std::int64_t bytes = 23 * 3 * 8 * 8;
  TransformOptions transform{.side = 8, .resize_side = 8};
  CHECK(reason_against_residence(dataset, transform, bytes).empty());
  CHECK(reason_against_residence(dataset, transform, bytes - 1) ==
        "its 23 images take 0 MB, and 0 MB are the most");
  transform.augment.random_resized_crop = true;
  CHECK(reason_against_residence(dataset, transform, bytes) ==
        "random resized crops need the loader");
  CHECK(reason_against_residence(dataset, {.side = 6, .resize_side = 7}, bytes) ==
        "its images of 8x8 pixels become 6x6, and only the loader resizes");
}

TEST_CASE("casts are LibTorch's, for every number", "[step-kernels][cast]") {
  for (const auto format : {NumberFormat::BFloat16, NumberFormat::Float16}) {
    const torch::Tensor all = all_patterns(type_of(format));
    CHECK(same(cast(torch::kCPU, all, format, NumberFormat::Float32), all.to(torch::kFloat32)));
    const torch::Tensor floats = floats_to_round();
    CHECK(
        same(cast(torch::kCPU, floats, NumberFormat::Float32, format), floats.to(type_of(format))));
  }
}

TEST_CASE("each block of a cast knows its tensor, with empty ones before and after",
          "[step-kernels][cast]") {
  std::vector<CastSegment> segments;
  for (const std::int64_t count : {0, 0, 4096, 4097, 0, 1, 0}) segments.push_back({.count = count});
  const CastPass pass = cast_pass(segments, NumberFormat::Float32, NumberFormat::Float16);
  REQUIRE(pass.blocks() == 4);
  CHECK(cast_segment_of(pass, 0) == 2);
  CHECK(cast_segment_of(pass, 1) == 3);
  CHECK(cast_segment_of(pass, 2) == 3);
  CHECK(cast_segment_of(pass, 3) == 5);
  CHECK(cast_pass({}, NumberFormat::Float32, NumberFormat::Float16).blocks() == 0);
  segments.resize(cast_segments_max + 1);
  CHECK_THROWS_AS(cast_pass(segments, NumberFormat::Float32, NumberFormat::Float16),
                  std::invalid_argument);
  segments = {{.count = std::int64_t{1} << 43}};
  CHECK_THROWS_AS(cast_pass(segments, NumberFormat::Float32, NumberFormat::Float16),
                  std::invalid_argument);
}

TEST_CASE("a batch of bytes becomes the loader's floats", "[step-kernels][normalize]") {
  for (const NormalizeCase& one : normalize_cases) {
    INFO(one.images << " images, " << one.channels << " channels, " << one.plane << " pixels");
    for (const bool channels_last : {false, true}) {
      const torch::Tensor bytes = bytes_of(one);
      const torch::Tensor found = normalize(torch::kCPU, one, bytes, channels_last);
      const NormalizationTable table(normalization_of(one));
      const auto* const from = bytes.data_ptr<std::uint8_t>();
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < bytes.numel(); ++i) {
        const std::int64_t channel =
            channels_last ? i % one.channels : i / one.plane % one.channels;
        if (found.data_ptr<float>()[i] != table.of_channel(channel)[from[i]]) ++wrong;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("on a GPU the kernels have the bits of the loops", "[step-kernels][gpu]") {
  if (const std::string reason = no_gpu(); !reason.empty()) DDPRUN_SKIP(reason);
  const torch::Device gpu(torch::kCUDA, 0);
  for (const NormalizeCase& one : normalize_cases) {
    for (const bool channels_last : {false, true}) {
      CHECK(torch::equal(normalize(gpu, one, bytes_of(one), channels_last),
                         normalize(torch::kCPU, one, bytes_of(one), channels_last)));
    }
  }
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
  const MemoryDataset dataset = random_set(3, 17);
  for (const bool channels_last : {false, true}) {
    const SampleOptions options = augmented(dataset, 17, channels_last);
    for (const auto format :
         {NumberFormat::Float32, NumberFormat::BFloat16, NumberFormat::Float16}) {
      const Gathered there = gather(gpu, dataset, options, some_indices, format);
      const Gathered here = gather(torch::kCPU, dataset, options, some_indices, format);
      CHECK(torch::equal(there.images, here.images));
      CHECK(torch::equal(there.labels, here.labels));
    }
  }
  for (const auto format : {NumberFormat::BFloat16, NumberFormat::Float16}) {
    const torch::Tensor all = all_patterns(type_of(format)), floats = floats_to_round();
    CHECK(same(cast(gpu, all, format, NumberFormat::Float32), all.to(torch::kFloat32)));
    CHECK(same(cast(gpu, floats, NumberFormat::Float32, format), floats.to(type_of(format))));
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
