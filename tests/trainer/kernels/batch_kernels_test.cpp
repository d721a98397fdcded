// A batch that the device makes, of a set in its memory or of bytes, against the loader's: on the
// CPU as loops over the device's own index arithmetic, and on a GPU, where there is one, with the
// bits of these loops.
#include "tests/testing/catch.h"
#include "tests/trainer/kernels/device_memory.h"
#include "trainer/data/normalize.h"
#include "trainer/data/resident_samples.h"
#include "trainer/data/sample_maker.h"
#include "trainer/data/sets/memory_dataset.h"
#include "trainer/kernels/device/gather_kernel.h"
#include "trainer/kernels/device/step_kernels.h"
#include "worker/torch/libtorch.h"

using namespace ddprun::trainer;
using namespace ddprun::trainer::testing;

namespace {

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

}  // namespace

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

TEST_CASE("on a GPU batches have the bits of the loops", "[step-kernels][gather][gpu]") {
  if (const std::string reason = no_gpu(); !reason.empty()) DDPRUN_SKIP(reason);
  const torch::Device gpu(torch::kCUDA, 0);
  for (const NormalizeCase& one : normalize_cases) {
    for (const bool channels_last : {false, true}) {
      CHECK(torch::equal(normalize(gpu, one, bytes_of(one), channels_last),
                         normalize(torch::kCPU, one, bytes_of(one), channels_last)));
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
}
