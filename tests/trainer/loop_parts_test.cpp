// The parts of the loop: batches, plans and meters.
#include <atomic>
#include <chrono>
#include <numeric>

#include "tests/testing/catch.h"
#include "tests/trainer/same_batches.h"
#include "tests/trainer/scratch.h"
#include "trainer/batch_plan.h"
#include "trainer/data/batch_loader.h"
#include "trainer/data/sets/memory_dataset.h"
#include "trainer/device/byte_batches.h"
#include "trainer/device/resident_batches.h"
#include "trainer/models/model_zoo.h"
#include "trainer/report/reporter.h"
#include "trainer/step_meters.h"

using namespace ddprun::trainer;

namespace {

MemoryDataset small_dataset(std::int64_t images) {
  MemoryDataset::Contents contents{
      .shape = {2, 2, 2}, .classes = 10, .normalization = {{0.5F, 0.0F}, {0.25F, 1.0F}}};
  for (std::int64_t i = 0; i < images; ++i) {
    contents.labels.push_back(static_cast<std::uint8_t>(i % 10));
    for (int k = 0; k < 8; ++k) contents.pixels.push_back(static_cast<std::uint8_t>(8 * i + k));
  }
  return MemoryDataset(std::move(contents));
}

// Ten images, each another one, of which two fail, as damaged files would.
class FailingDataset : public MemoryDataset {
 public:
  FailingDataset()
      : MemoryDataset({.shape = {1, 2, 2},
                       .classes = 10,
                       .normalization = {{0.0F}, {1.0F}},
                       .pixels = counted(40),
                       .labels = counted(10)}) {}
  std::unique_ptr<ImageReader> make_reader() const override {
    return std::make_unique<Reader>(MemoryDataset::make_reader());
  }

 private:
  static std::vector<std::uint8_t> counted(std::size_t count) {
    std::vector<std::uint8_t> bytes(count);
    std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
    return bytes;
  }

  struct Reader : ImageReader {
    explicit Reader(std::unique_ptr<ImageReader> reader) : good(std::move(reader)) {}
    ImageSize open(std::int64_t index) override {
      if (index == 6 || index == 7) {
        throw ImageError("image " + std::to_string(index) + " is damaged");
      }
      return good->open(index);
    }
    DecodedImage decode(const ImageRegion& region) override { return good->decode(region); }
    std::unique_ptr<ImageReader> good;
  };
};

// Knows how many images were asked for.
class CountingDataset : public MemoryDataset {
 public:
  explicit CountingDataset(std::size_t images)
      : MemoryDataset({.shape = {1, 2, 2},
                       .classes = 2,
                       .normalization = {{0.0F}, {1.0F}},
                       .pixels = std::vector<std::uint8_t>(4 * images),
                       .labels = std::vector<std::uint8_t>(images)}) {}
  std::unique_ptr<ImageReader> make_reader() const override {
    return std::make_unique<Reader>(MemoryDataset::make_reader(), asked_);
  }
  int asked() const { return asked_; }

 private:
  struct Reader : ImageReader {
    Reader(std::unique_ptr<ImageReader> reader, std::atomic<int>& count)
        : good(std::move(reader)), asked(count) {}
    ImageSize open(std::int64_t index) override {
      ++asked;
      return good->open(index);
    }
    DecodedImage decode(const ImageRegion& region) override { return good->decode(region); }
    std::unique_ptr<ImageReader> good;
    std::atomic<int>& asked;
  };
  mutable std::atomic<int> asked_ = 0;
};

void spin_for(std::chrono::nanoseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < until) {
  }
}

std::vector<std::int64_t> first(std::int64_t count) {
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < count; ++i) indices.push_back(i);
  return indices;
}

}  // namespace

TEST_CASE("batches are normalised, in order, and the last holds the rest", "[trainer][loader]") {
  const MemoryDataset dataset = small_dataset(7);
  for (const int threads : {0, 1, 3}) {
    INFO(threads << " threads");
    BatchLoader loader(dataset, {6, 5, 4, 3, 2, 1, 0}, {.batch_size = 3, .threads = threads});
    CHECK(loader.batches() == 3);
    std::vector<std::int64_t> labels;
    while (const auto batch = loader.next()) {
      for (std::int64_t i = 0; i < batch->labels.size(0); ++i) {
        const std::int64_t label = batch->labels[i].item<std::int64_t>();
        labels.push_back(label);
        const float byte = static_cast<float>(8 * label);
        CHECK(batch->images[i][0][0][0].item<float>() == Approx((byte / 255 - 0.5F) / 0.25F));
        CHECK(batch->images[i][1][1][1].item<float>() == Approx((byte + 7) / 255));
      }
    }
    CHECK(labels == std::vector<std::int64_t>{6, 5, 4, 3, 2, 1, 0});
    CHECK_FALSE(loader.next());
  }
}

TEST_CASE("batches that are put together of parts are those that are made at once",
          "[trainer][loader]") {
  const FailingDataset dataset;
  for (const std::int64_t images : {9, 10}) {
    for (const std::int64_t part_size : {1, 2, 3, 4, 5}) {
      for (const bool channels_last : {false, true}) {
        CAPTURE(images, part_size, channels_last);
        LoaderOptions options{
            .batch_size = 4,
            .threads = 3,
            .sample = {.on_bad_image = BadImagePolicy::Omit, .channels_last = channels_last}};
        BatchLoader whole(dataset, first(images), options);
        options.part_size = part_size;
        BatchLoader parts(dataset, first(images), options);
        check_same_batches(parts, whole);
        // Without threads there is nobody to make parts.
        options.threads = 0;
        BatchLoader alone(dataset, first(images), options);
        options.threads = 3;
        options.part_size = 0;
        BatchLoader again(dataset, first(images), options);
        check_same_batches(alone, again);
      }
    }
  }
}

TEST_CASE("a batch of which no image can be read is left out, also one of parts",
          "[trainer][loader]") {
  const FailingDataset dataset;
  for (const int threads : {0, 2}) {
    for (const std::int64_t part_size : {0, 1}) {
      CAPTURE(threads, part_size);
      BatchLoader loader(dataset, {0, 1, 6, 7, 2},
                         {.batch_size = 2,
                          .part_size = part_size,
                          .threads = threads,
                          .sample = {.on_bad_image = BadImagePolicy::Omit}});
      CHECK(loader.next()->indices == std::vector<std::int64_t>{0, 1});
      CHECK(loader.next()->indices == std::vector<std::int64_t>{2});
      CHECK_FALSE(loader.next());
      CHECK(loader.taken() == 3);
      CHECK(loader.skipped().size() == 2);
    }
  }
}

TEST_CASE("what a loader is given comes before what its data set has", "[trainer][loader]") {
  const MemoryDataset dataset = small_dataset(4);
  const auto load = [&](const SampleOptions& sample) {
    BatchLoader loader(dataset, first(4), {.batch_size = 4, .threads = 0, .sample = sample});
    return loader.next()->images;
  };
  const torch::Tensor plain = load({.normalization = {{0, 0}, {1, 1}}});

  CHECK(torch::allclose(load({}).select(1, 0), (plain.select(1, 0) - 0.5) / 0.25));
  // The middle of what was made larger, and not the whole.
  const torch::Tensor middle =
      load({.transform = {.side = 2, .resize_side = 4}, .normalization = {{0, 0}, {1, 1}}});
  CHECK(middle.sizes() == plain.sizes());
  CHECK_FALSE(torch::equal(middle, plain));
}

TEST_CASE("a batch of many parts is never held as often as there are threads",
          "[trainer][loader]") {
  // Each image is asked for when a thread makes it: those beyond the parts that may be made ahead
  // are not, while the first batch has not been taken.
  const CountingDataset dataset(1000);
  BatchLoader loader(dataset, first(1000), {.batch_size = 100, .part_size = 10, .threads = 4});
  REQUIRE(loader.next());
  CHECK(dataset.asked() <= 100 + 2 * 4 * 10);
}

TEST_CASE("memory order and size of images are as asked for", "[trainer][loader]") {
  const MemoryDataset dataset = small_dataset(4);
  const auto load = [&](LoaderOptions options) {
    return BatchLoader(dataset, first(4), options).next()->images;
  };
  const torch::Tensor plain = load({.batch_size = 4, .threads = 0});

  const torch::Tensor last =
      load({.batch_size = 4, .threads = 0, .sample = {.channels_last = true}});
  CHECK(last.is_contiguous(torch::MemoryFormat::ChannelsLast));
  CHECK(torch::equal(plain, last));

  const torch::Tensor larger =
      load({.batch_size = 4, .threads = 0, .sample = {.transform = {.side = 6}}});
  CHECK(larger.sizes() == torch::IntArrayRef({4, 2, 6, 6}));
}

TEST_CASE("resident data gives the loader's batches, bit for bit", "[trainer][loader][resident]") {
  const MemoryDataset dataset = small_dataset(11);
  const std::vector<std::int64_t> indices{10, 3, 3, 0, 9, 1, 2};
  SampleOptions sample{.transform = {.side = 2, .resize_side = 2},
                       .normalization = dataset.normalization(),
                       .seed = 4,
                       .epoch = 3};
  sample.transform.augment = {.flip = true, .pad_crop = true, .padding = 1};
  for (const bool channels_last : {false, true}) {
    sample.channels_last = channels_last;
    const ResidentSet set(dataset, sample.normalization, torch::kCPU);
    ResidentBatches resident(set, indices, 3, sample);
    BatchLoader loader(dataset, indices, {.batch_size = 3, .threads = 0, .sample = sample});
    check_same_batches(resident, loader);
  }
}

TEST_CASE("batches that travel as bytes are the loader's, bit for bit",
          "[trainer][loader][bytes]") {
  const MemoryDataset dataset = small_dataset(11);
  const std::vector<std::int64_t> indices{10, 3, 3, 0, 9, 1, 2, 5, 4, 8};
  for (const int side : {2, 3, 5}) {  // Also larger than the images, and odd.
    for (const bool channels_last : {false, true}) {
      for (const int threads : {0, 2}) {
        INFO(side << " pixels, last: " << channels_last << ", threads: " << threads);
        SampleOptions sample{.transform = {.side = side, .resize_side = side},
                             .normalization = dataset.normalization(),
                             .seed = 4,
                             .epoch = 3,
                             .channels_last = channels_last};
        sample.transform.augment = {.flip = true, .pad_crop = true, .padding = 1};
        const LoaderOptions options{.batch_size = 4, .threads = threads, .sample = sample};
        ByteBatches bytes(dataset, indices, options, torch::kCPU);
        BatchLoader loader(dataset, indices, options);
        CHECK(bytes.batches() == loader.batches());
        std::vector<Batch> kept;  // Memory that is used again must not be theirs.
        while (auto batch = bytes.next()) kept.push_back(std::move(*batch));
        CHECK(bytes.taken() == bytes.batches());
        for (const Batch& batch : kept) {
          const auto expected = loader.next();
          REQUIRE(expected);
          check_same(batch, *expected);
        }
        CHECK_FALSE(loader.next());
      }
    }
  }
}

TEST_CASE("batches that travel as bytes are told to which of the devices", "[trainer][bytes]") {
  const MemoryDataset dataset = small_dataset(1);
  const LoaderOptions options{.sample = {.normalization = dataset.normalization()}};
  CHECK_THROWS_AS(ByteBatches(dataset, first(1), options, torch::kMeta), c10::ValueError);
}

TEST_CASE("of batches that travel as bytes images are left out and replaced as by the loader",
          "[trainer][loader][bytes]") {
  const FailingDataset dataset;
  for (const auto policy : {BadImagePolicy::Omit, BadImagePolicy::Replace}) {
    const LoaderOptions options{.batch_size = 3,
                                .threads = 0,
                                .sample = {.transform = {.side = 2, .resize_side = 2},
                                           .normalization = dataset.normalization(),
                                           .on_bad_image = policy}};
    ByteBatches bytes(dataset, first(10), options, torch::kCPU);
    BatchLoader loader(dataset, first(10), options);
    while (const auto expected = loader.next()) {
      const auto batch = bytes.next();
      REQUIRE(batch);
      CHECK(torch::equal(batch->images, expected->images));
      CHECK(batch->indices == expected->indices);
    }
    CHECK_FALSE(bytes.next());
    CHECK(bytes.skipped().size() == loader.skipped().size());
  }
}

TEST_CASE("an error in a loader thread comes out of the batch it belongs to", "[trainer][loader]") {
  const FailingDataset dataset;
  for (const int threads : {0, 2}) {
    BatchLoader loader(dataset, first(10), {.batch_size = 2, .threads = threads});
    CHECK(loader.next());
    CHECK(loader.next());
    CHECK(loader.next());
    CHECK_THROWS_AS(loader.next(), DataError);
  }
}

TEST_CASE("an unreadable image is replaced by the next readable one", "[trainer][loader]") {
  const FailingDataset dataset;
  for (const int threads : {0, 3}) {
    BatchLoader loader(
        dataset, first(10),
        {.batch_size = 4, .threads = threads, .sample = {.on_bad_image = BadImagePolicy::Replace}});
    std::vector<std::int64_t> indices;
    while (const auto batch = loader.next()) {
      CHECK(batch->images.size(0) == static_cast<std::int64_t>(batch->indices.size()));
      indices.insert(indices.end(), batch->indices.begin(), batch->indices.end());
    }
    CHECK(indices == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 8, 8, 8, 9});
    REQUIRE(loader.skipped().size() == 3);  // 6 and 7 for sample 6, 7 for sample 7.
    CHECK(loader.skipped()[0].reason == "image 6 is damaged");
  }
}

TEST_CASE("an omitted image makes a batch smaller, and an empty one vanish", "[trainer][loader]") {
  const FailingDataset dataset;
  for (const int threads : {0, 3}) {
    BatchLoader loader(
        dataset, first(9),
        {.batch_size = 2, .threads = threads, .sample = {.on_bad_image = BadImagePolicy::Omit}});
    std::vector<std::int64_t> sizes;
    while (const auto batch = loader.next()) {
      CHECK(batch->labels.size(0) == batch->images.size(0));
      sizes.push_back(batch->images.size(0));
    }
    CHECK(sizes == std::vector<std::int64_t>{2, 2, 2, 1});
    CHECK(loader.skipped().size() == 2);
  }
}

TEST_CASE("a loader may be left with batches still coming", "[trainer][loader]") {
  const MemoryDataset dataset = small_dataset(20);
  for (int used = 0; used < 4; ++used) {
    BatchLoader loader(dataset, first(20), {.batch_size = 1, .threads = 3});
    for (int i = 0; i < used; ++i) CHECK(loader.next());
  }
}

TEST_CASE("a global batch is shared, and the steps of a run are counted", "[trainer][plan]") {
  TrainOptions options;
  options.global_batch_size = 128;
  options.epochs = 3;

  const BatchPlan plan = plan_batches(options, 1001, 2);

  CHECK(plan.batch_size == 64);
  CHECK(plan.samples_per_worker == 501);
  CHECK(plan.steps_per_epoch == 8);
  CHECK(plan.last_batch_size == 53);
  CHECK(plan.total_steps == 24);
  options.steps = 10;
  CHECK(plan_batches(options, 1001, 2).total_steps == 10);
  options.epochs.reset();
  options.steps = 100'000;
  CHECK(plan_batches(options, 1001, 2).total_steps == 100'000);
}

TEST_CASE("with shards a step has their number of batches, however many workers",
          "[trainer][plan]") {
  TrainOptions options;
  options.shards = 6;
  options.batch_size = 4;
  options.epochs = 2;
  for (const int workers : {1, 2, 4, 6}) {
    CAPTURE(workers);
    const BatchPlan plan = plan_batches(options, 1001, workers);
    CHECK(plan.replicas == 6);
    CHECK(plan.global_batch_size == 24);
    CHECK(plan.samples_per_worker == 167);
    CHECK(plan.total_steps == 84);
  }
  const auto refused = [&] { plan_batches(options, 1001, 7); };
  CHECK(contains(message_of<UsageError>(refused), "start at most 6 workers"));
  options.batch_size.reset();
  options.global_batch_size = 24;
  CHECK(plan_batches(options, 1001, 4).batch_size == 4);
  options.global_batch_size = 25;
  const auto uneven = [&] { plan_batches(options, 1001, 1); };
  CHECK(contains(message_of<UsageError>(uneven), "shared evenly by 6 shards"));
}

TEST_CASE("a job that goes on with another number of workers rounds its batch down",
          "[trainer][plan]") {
  TrainOptions options;
  options.global_batch_size = 256;
  CHECK_THROWS_AS(plan_batches(options, 1001, 3), UsageError);
  const BatchPlan plan = plan_batches(options, 1001, 3, UnevenBatch::Rounded);
  CHECK(plan.micro_batch_size == 85);
  CHECK(plan.global_batch_size == 255);
  CHECK(plan_batches(options, 1001, 4, UnevenBatch::Rounded).global_batch_size == 256);
  options.global_batch_size = 2;  // Nothing would be left of it.
  CHECK_THROWS_AS(plan_batches(options, 1001, 3, UnevenBatch::Rounded), UsageError);
}

TEST_CASE("an evaluation may have fewer images than a batch", "[trainer]") {
  TrainOptions options;
  options.global_batch_size = 128;
  options.accumulate = 2;

  const BatchPlan plan = plan_batch_sizes(options, 2);

  CHECK(plan.micro_batch_size == 32);
  CHECK(plan.batch_size == 64);
  CHECK(plan.global_batch_size == 128);
  CHECK(plan.total_steps == 0);
  CHECK_THROWS_AS(plan_batch_sizes(options, 3), UsageError);
}

TEST_CASE("batches that cannot be are refused by name", "[trainer][plan]") {
  TrainOptions options;
  const auto error = [&](std::int64_t images, int world) {
    return message_of<UsageError>([&] { plan_batches(options, images, world); });
  };
  options.batch_size = 64;
  CHECK(error(128, 2) == "");
  CHECK(contains(error(127, 2), "--batch-size"));
  options.batch_size.reset();
  options.global_batch_size = 10;
  CHECK(contains(error(100, 3), "--global-batch-size 10"));
  CHECK(contains(error(9, 2), "larger than the data"));
  CHECK(contains(error(9, 2), "which has 9: choose a smaller one"));
}

TEST_CASE("where no batch is small enough, what else can be smaller is said", "[trainer][plan]") {
  TrainOptions options;
  const auto error = [&](std::int64_t images, int world) {
    return message_of<UsageError>([&] { plan_batches(options, images, world); });
  };
  options.batch_size = 1;
  CHECK(contains(error(2, 3), "which has 2: start at most 2 workers"));
  CHECK(error(3, 3) == "");
  options.accumulate = 4;
  CHECK(contains(error(11, 3), "which has 11: --accumulate can be 3 at most"));
  options.accumulate = 3;
  CHECK(error(11, 3) == "");
  options.accumulate = 1;
  options.shards = 5;
  CHECK(contains(error(4, 2), "which has 4: train with at most 4 shards"));
}

TEST_CASE("a last batch of one small image is refused for normalised networks", "[trainer][plan]") {
  TrainOptions options;
  options.batch_size = 4;
  const BatchPlan plan = plan_batches(options, 9, 1);
  const auto error = [&](const char* name, StemChoice stem) {
    const auto model = make_model({name, stem, 3, 32, 10});
    return message_of<UsageError>([&] { check_last_batch(plan, *model, 32, 1); });
  };
  CHECK(contains(error("resnet18", StemChoice::ImageNet), "--batch-size"));
  CHECK(error("resnet18", StemChoice::Small) == "");
  CHECK(error("convnet", StemChoice::Auto) == "");
}

TEST_CASE("a label counts by its rank among the scores, ties by class", "[trainer][meters]") {
  const torch::Tensor logits = torch::tensor({{1.0F, 3.0F, 2.0F, 0.0F, 0.5F, 0.6F},
                                              {1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F},
                                              {0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F},
                                              {9.0F, 8.0F, 7.0F, 6.0F, 5.0F, 4.0F}});
  const auto counts = [&](const std::vector<std::int64_t>& labels) {
    const torch::Tensor result = batch_counts(logits, torch::tensor(labels), torch::tensor(0.5F));
    return std::vector<double>(result.data_ptr<double>(), result.data_ptr<double>() + 3);
  };
  CHECK(counts({1, 0, 4, 5}) == std::vector<double>{2, 2, 3});
  CHECK(counts({3, 5, 0, 0}) == std::vector<double>{2, 2, 2});
  const torch::Tensor nan = torch::full({2, 10}, std::nan(""));
  const torch::Tensor labels = torch::zeros({2}, torch::kInt64);
  CHECK(batch_counts(nan, labels, torch::tensor(1.0F))[2].item<double>() == 0);
}

TEST_CASE("a printed line shows the last value and the average", "[trainer][meters]") {
  const BatchPlan plan{
      .batch_size = 2, .global_batch_size = 4, .steps_per_epoch = 5, .total_steps = 10};
  StepMeters meters(plan, torch::kCPU);
  const torch::Tensor logits = torch::tensor({{2.0F, 1.0F}, {2.0F, 1.0F}});
  const auto step = [&](const torch::Tensor& labels, float loss) {
    meters.data_ready();
    meters.step_done(batch_counts(logits, labels, torch::tensor(loss)), 2, 4);
  };
  step(torch::tensor({0, 0}, torch::kInt64), 1);
  step(torch::tensor({0, 1}, torch::kInt64), 3);

  const StepReport report = meters.report({.epoch = 1, .samples_done = 8, .step = 7}, 0.1);

  CHECK(report.loss.value() == 3);
  CHECK(report.loss.average() == 2);
  CHECK(report.prec1.value() == 50);
  CHECK(report.prec1.average() == 75);
  CHECK(report.step_in_epoch == 2);
  CHECK(meters.images() == 8);
  const std::string line = step_line(report);
  CHECK(contains(line, "Epoch: [2][2/5]"));
  CHECK(contains(line, "Loss 3.0000e+00 (2.0000e+00)"));
  CHECK(contains(line, "Prec@1  50.00 ( 75.00)"));
}

TEST_CASE("18.2: the wait for the device before a line counts as its steps' time",
          "[trainer][meters]") {
  const BatchPlan plan{
      .batch_size = 2, .global_batch_size = 4, .steps_per_epoch = 5, .total_steps = 10};
  StepMeters meters(plan, torch::kCPU);
  meters.data_ready();
  meters.step_done(torch::zeros({3}, torch::kFloat64), 2, 4);
  spin_for(std::chrono::milliseconds(20));  // As if a GPU were at work.

  meters.device_done([] { return std::chrono::nanoseconds{0}; });

  const StepReport report = meters.report({.samples_done = 4, .step = 1}, 0.1);
  CHECK(meters.seconds() >= 0.02);
  CHECK(report.window_step_s >= 0.02);
  CHECK(report.time_s.average() >= 0.02);
  CHECK(report.images_per_s <= 4 / 0.02);
  CHECK(report.remaining_s >= 9 * 0.02);
}

TEST_CASE("18.1: the pace of a device is that of the steps between two waits for it",
          "[trainer][meters]") {
  DevicePace device;
  CHECK_FALSE(device.pace());
  device.done(1, 0);  // Before any step.
  CHECK_FALSE(device.pace());
  for (int step = 0; step < 4; ++step) device.queued(0.001);
  CHECK_FALSE(device.pace());
  device.done(0.396, 0.2);
  REQUIRE(device.pace());
  CHECK(device.pace()->step_s == Approx(0.1));
  CHECK(device.pace()->own_s == Approx(0.05));
  device.queued(0.001);
  CHECK(device.pace()->step_s == Approx(0.1));  // Of that step nothing is known yet.
  device.done(0.039, 0);
  CHECK(device.pace()->step_s == Approx(0.04));
  CHECK(device.pace()->own_s == Approx(0.04));
}

TEST_CASE("18.1: a line has the waits that were known once the device was done",
          "[trainer][meters]") {
  const BatchPlan plan{
      .batch_size = 2, .global_batch_size = 4, .steps_per_epoch = 5, .total_steps = 10};
  StepMeters meters(plan, torch::kCPU, std::chrono::milliseconds{100});
  const auto step = [&](std::chrono::milliseconds exposed) {
    meters.data_due();
    meters.data_ready();
    meters.step_done(torch::zeros({3}, torch::kFloat64), 2, 4);
    meters.communicated(exposed);
  };
  step(std::chrono::milliseconds{100});
  step(std::chrono::milliseconds{110});  // The device is behind.
  meters.device_done([] { return std::chrono::milliseconds{140}; });
  CHECK(meters.report({.samples_done = 8, .step = 2}, 0.1).window_exposed_s == Approx(0.02));
  meters.start_window();
  step(std::chrono::milliseconds{150});
  CHECK(meters.last_times().wait_s == Approx(0.01));  // On a CPU, of the last step.
  meters.device_done([] { return std::chrono::milliseconds{150}; });
  CHECK(meters.report({.samples_done = 12, .step = 3}, 0.1).window_exposed_s == Approx(0.01));
}

TEST_CASE("18.2: what waits between two steps is not the loader's, but time of the steps",
          "[trainer][meters]") {
  const BatchPlan plan{
      .batch_size = 2, .global_batch_size = 4, .steps_per_epoch = 5, .total_steps = 10};
  StepMeters meters(plan, torch::kCPU);
  const torch::Tensor counts = torch::zeros({3}, torch::kFloat64);
  meters.data_due();
  meters.data_ready();
  meters.step_done(counts, 2, 4);
  spin_for(std::chrono::milliseconds(20));  // As if the ranks were voting.

  const auto due = std::chrono::steady_clock::now();
  meters.data_due();
  meters.data_ready();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - due;
  meters.step_done(counts, 2, 4);

  CHECK(meters.last_times().data_s <= waited.count());
  CHECK(meters.last_times().step_s >= 0.02);
  CHECK(meters.seconds() >= 0.02);
  CHECK(meters.report({.samples_done = 8, .step = 2}, 0.1).window_step_s >= 0.01);
}

TEST_CASE("what is left of a run has the validations that are left", "[trainer][meters]") {
  // Three epochs, the last one of two steps.
  const BatchPlan plan{
      .batch_size = 2, .global_batch_size = 4, .steps_per_epoch = 5, .total_steps = 12};
  const auto left_after = [&](double validation_s, const TrainingState& state) {
    StepMeters meters(plan, torch::kCPU, {}, validation_s);
    meters.data_due();
    meters.data_ready();
    meters.step_done(torch::zeros({3}, torch::kFloat64), 2, 4);
    const StepReport report = meters.report(state, 0.1);
    return report.remaining_s -
           static_cast<double>(plan.total_steps - state.step) * report.time_s.average();
  };
  constexpr double validation_s = 600;
  CHECK(left_after(validation_s, {.epoch = 0, .samples_done = 4, .step = 1}) == Approx(3 * 600));
  CHECK(left_after(validation_s, {.epoch = 1, .samples_done = 20, .step = 10}) == Approx(2 * 600));
  CHECK(left_after(validation_s, {.epoch = 2, .samples_done = 8, .step = 12}) == Approx(600));
  CHECK(left_after(0, {.epoch = 0, .samples_done = 4, .step = 1}) == Approx(0));
}
