// The running statistics of a step with several shards, beside those computed by hand.
#include "trainer/shards/batch_statistics.h"

#include "tests/testing/catch.h"
#include "worker/torch/sync_batch_norm.h"

namespace ddprun::trainer {
namespace {

constexpr double momentum = 0.3;

struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    const auto options = torch::nn::BatchNormOptions(2).momentum(momentum);
    norm = register_module("norm", worker::SyncBatchNorm2d(options));
  }
  worker::SyncBatchNorm2d norm{nullptr};
};
TORCH_MODULE(Normed);

torch::Tensor batch(int seed) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  return 3 * torch::randn({4, 2, 3, 3}) + seed;
}

torch::Tensor mean_of(const torch::Tensor& x) { return x.mean({0, 2, 3}); }
torch::Tensor variance_of(const torch::Tensor& x) { return x.var({0, 2, 3}, /*unbiased=*/true); }

std::vector<float> sum_of(const std::vector<std::vector<float>>& rows) {
  std::vector<float> sum(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += row[i];
  }
  return sum;
}

}  // namespace

TEST_CASE("running statistics follow the mean over the shards, once a step", "[trainer][shards]") {
  Normed model;
  BatchStatistics statistics(*model);
  REQUIRE(statistics.size() == 4);
  torch::Tensor mean = model->norm->running_mean.clone();
  torch::Tensor variance = model->norm->running_var.clone();
  for (int step = 1; step <= 3; ++step) {
    std::vector<std::vector<float>> rows;
    std::vector<torch::Tensor> means, variances;
    statistics.begin_step();
    for (int shard = 0; shard < 3; ++shard) {
      statistics.begin_shard();
      statistics.begin_micro_batch();
      const torch::Tensor x = batch(10 * step + shard);
      model->norm->forward(x);
      means.push_back(mean_of(x));
      variances.push_back(variance_of(x));
      rows.emplace_back(4);
      statistics.take(rows.back().data());
    }
    statistics.update(sum_of(rows).data(), 3);
    mean = (1 - momentum) * mean + momentum * torch::stack(means).mean(0);
    variance = (1 - momentum) * variance + momentum * torch::stack(variances).mean(0);
    CHECK(torch::allclose(model->norm->running_mean, mean, 1e-5, 1e-6));
    CHECK(torch::allclose(model->norm->running_var, variance, 1e-5, 1e-6));
    CHECK(model->norm->num_batches_tracked.item<std::int64_t>() == step);
    CHECK(*model->norm->options.momentum() == momentum);
  }
}

TEST_CASE("16.3: a step that is left half done leaves the running statistics as they were",
          "[trainer][shards][recovery]") {
  Normed model;
  const auto state = [&] {
    return std::vector<torch::Tensor>{model->norm->running_mean.clone(),
                                      model->norm->running_var.clone(),
                                      model->norm->num_batches_tracked.clone()};
  };
  const auto step = [&](BatchStatistics& statistics, int forwards, bool ends) {
    std::vector<float> row(4);
    statistics.begin_step();
    for (int forward = 0; forward < forwards; ++forward) {
      statistics.begin_shard();
      statistics.begin_micro_batch();
      model->norm->forward(batch(forward));
      statistics.take(row.data());
    }
    if (ends) statistics.update(row.data(), 1);
  };
  for (int forwards = 0; forwards <= 2; ++forwards) {  // Left before the first, and after.
    auto statistics = std::make_unique<BatchStatistics>(*model);
    step(*statistics, 1, /*ends=*/true);
    const auto before = state();
    step(*statistics, forwards, /*ends=*/false);
    statistics.reset();
    const auto after = state();
    for (std::size_t i = 0; i < before.size(); ++i) CHECK(torch::equal(before[i], after[i]));
    CHECK(*model->norm->options.momentum() == momentum);
    // And one that ended stays.
    BatchStatistics again(*model);
    step(again, 1, /*ends=*/true);
    CHECK_FALSE(torch::equal(before[0], model->norm->running_mean));
  }
}

TEST_CASE("the micro batches of a shard count alike", "[trainer][shards]") {
  Normed model;
  BatchStatistics statistics(*model);
  std::vector<float> row(4);
  statistics.begin_step();
  for (int shard = 0; shard < 2; ++shard) {  // The first one leaves nothing to the second.
    statistics.begin_shard();
    for (int micro = 0; micro < 3; ++micro) {
      statistics.begin_micro_batch();
      model->norm->forward(batch(micro));
    }
    statistics.take(row.data());
    const torch::Tensor mean = (mean_of(batch(0)) + mean_of(batch(1)) + mean_of(batch(2))) / 3;
    CHECK(torch::allclose(torch::tensor({row[0], row[1]}), mean, 1e-5, 1e-6));
  }
  statistics.update(row.data(), 1);
  CHECK(model->norm->num_batches_tracked.item<std::int64_t>() == 1);
}

TEST_CASE("buffers that shards do not know are refused", "[trainer][shards]") {
  Normed model;
  model->register_buffer("steps", torch::zeros({1}));
  CHECK_THROWS_AS(BatchStatistics(*model), std::invalid_argument);
}

}  // namespace ddprun::trainer
