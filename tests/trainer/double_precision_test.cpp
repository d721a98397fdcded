// The training step in double precision, with one and two workers.
//
// A ResNet that starts as torchvision's does is chaotic in its first steps: float32's rounding
// grows to tens of percent within thirty of them, in PyTorch beside itself too. In double precision
// it has grown to 4e-14 after these five. So what agrees to `tolerance` here computes the same, up
// to rounding: a difference of 1e-14 in the first step would be seen.
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"
#include "tests/worker/communicator_cluster.h"
#include "trainer/checkpoint/weights_file.h"
#include "trainer/formats/safetensors.h"
#include "trainer/models/model_zoo.h"
#include "trainer/optimizer/parameter_kinds.h"
#include "trainer/sgd_options.h"
#include "trainer/training_step.h"
#include "worker/torch/distributed_data_parallel.h"
#include "worker/torch/sync_batch_norm.h"

namespace ddprun::trainer {
namespace {

using worker::Communicator;
using worker::Wiring;

constexpr std::int64_t run_steps = 5;
constexpr double learning_rate = 0.01;
constexpr double tolerance = 1e-12;  // Relative, of every loss.

using StartModel = std::function<void(torch::nn::Module&)>;  // Gives it its weights.
using Losses = std::vector<std::vector<double>>;             // By step and rank.

struct Data {
  torch::Tensor images;  // (N, 3, 32, 32) float.
  torch::Tensor labels;  // (N) int64.
};

struct Run {
  int workers = 1;
  std::int64_t steps = run_steps;
  std::int64_t batch = 8;  // Of a worker. The workers' batches of a step follow each other.
  bool sync_batch_norm = false;
  Wiring wiring = Wiring::SharedMemory;
};

// The parts of a job that a training step needs, as make_training_job() puts them together.
std::unique_ptr<TrainingJob> make_job(const Run& run, const StartModel& start,
                                      Communicator& communicator) {
  auto job = std::make_unique<TrainingJob>();
  job->env.rank = communicator.rank();
  job->env.world_size = communicator.world_size();
  job->plan.micro_batch_size = run.batch;
  job->model = make_model({.name = "resnet18",
                           .stem = StemChoice::ImageNet,
                           .input_channels = 3,
                           .image_size = 32,
                           .classes = 10});
  start(*job->model);
  job->model->to(torch::kFloat64);
  job->precision = std::make_unique<Precision>(PrecisionOption::Fp32, torch::kCPU);
  worker::DataParallelOptions options;
  if (run.sync_batch_norm && run.workers > 1) {
    options.queue = worker::reduction_queue_of(communicator, torch::kCPU);
    worker::synchronize_batch_norms(*job->model, {options.queue, communicator.rank(), run.workers});
  }
  std::vector<std::pair<std::string, torch::Tensor>> parameters;
  for (const auto& item : job->model->named_parameters())
    parameters.emplace_back(item.key(), item.value());
  job->optimizer = std::make_unique<Sgd>(
      parameters, sgd_options(job->options, *job->model, /*own_kernel=*/false));
  job->parallel = std::make_unique<worker::DistributedDataParallel<ImageClassifier>>(
      job->model, communicator, options);
  return job;
}

Losses train(const Run& run, const Data& data, const StartModel& start) {
  Losses losses(static_cast<std::size_t>(run.steps),
                std::vector<double>(static_cast<std::size_t>(run.workers)));
  const auto errors = worker::spawn(
      {.world = run.workers, .wiring = run.wiring, .chunk_bytes = std::size_t{1} << 20},
      [&](Communicator& communicator) {
        at::set_num_threads(1);
        const auto job = make_job(run, start, communicator);
        TrainingStep step(*job);
        const auto rank = static_cast<std::size_t>(communicator.rank());
        for (std::int64_t i = 0; i < run.steps; ++i, ++job->state.step) {
          const std::int64_t begin = (i * run.workers + communicator.rank()) * run.batch;
          const StepOutput output =
              step.run(data.images.narrow(0, begin, run.batch).to(torch::kFloat64),
                       data.labels.narrow(0, begin, run.batch), learning_rate);
          losses[static_cast<std::size_t>(i)][rank] = output.loss.item<double>();
        }
      });
  for (const std::string& error : errors) CHECK(error == "");
  return losses;
}

// The largest relative difference over steps and ranks, NaN if there is one.
double difference(const Losses& ours, const Losses& theirs) {
  REQUIRE(ours.size() == theirs.size());
  double largest = 0;
  for (std::size_t step = 0; step < ours.size(); ++step) {
    REQUIRE(ours[step].size() == theirs[step].size());
    for (std::size_t rank = 0; rank < ours[step].size(); ++rank) {
      const double here = std::abs(ours[step][rank] / theirs[step][rank] - 1);
      if (!(here <= largest)) largest = here;
    }
  }
  return largest;
}

// Of every step the mean over the ranks.
Losses means(const Losses& losses) {
  Losses result;
  for (const auto& step : losses) {
    double sum = 0;
    for (const double loss : step) sum += loss;
    result.push_back({sum / static_cast<double>(step.size())});
  }
  return result;
}

TEST_CASE("five steps in double precision have PyTorch's losses from torchvision's own start",
          "[trainer][double][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Python torch in .deps/peer");
  const ScratchFolder folder;
  const int code =
      run_oracle("double '" + folder.path().string() + "' " + std::to_string(run_steps) + " 8 0.01",
                 folder / "log");
  INFO(content_of(folder / "log"));
  REQUIRE(code == 0);
  const auto expected = nlohmann::json::parse(content_of(folder / "losses"));
  std::map<std::string, torch::Tensor> tensors;
  const Safetensors file = read_safetensors(folder / "data");
  for (const auto& [name, tensor] : file.tensors) tensors[name] = tensor;
  const Data data{tensors.at("images"), tensors.at("labels")};
  const StartModel start = [&](torch::nn::Module& model) {
    load_weights_file(folder / "weights", WeightsUse::Training, model);
  };

  for (const int workers : {1, 2}) {
    INFO(workers << " workers");
    const Losses ours = train({.workers = workers}, data, start);

    const auto theirs = expected[static_cast<std::size_t>(workers - 1)].get<Losses>();
    CHECK(difference(ours, theirs) < tolerance);
  }
}

TEST_CASE("in double precision two workers with SyncBatchNorm train as one with the double batch",
          "[trainer][double][sync_bn]") {
  torch::manual_seed(5);
  const Data data{torch::randn({16 * run_steps, 3, 32, 32}), torch::randint(10, {16 * run_steps})};
  // Drawn once: the generator is one for all threads.
  const auto drawn = make_model({.name = "resnet18",
                                 .stem = StemChoice::ImageNet,
                                 .input_channels = 3,
                                 .image_size = 32,
                                 .classes = 10});
  const StartModel start = [&](torch::nn::Module& model) {
    const torch::NoGradGuard no_grad;
    const auto from = drawn->named_parameters();
    for (auto& item : model.named_parameters()) item.value().copy_(from[item.key()]);
  };

  const Losses alone = train({.batch = 16}, data, start);
  const Losses together = train({.workers = 2, .sync_batch_norm = true}, data, start);
  const Losses apart = train({.workers = 2, .steps = 2, .wiring = Wiring::Tcp}, data, start);

  CHECK(difference(means(together), alone) < tolerance);
  // What the test would see without SyncBatchNorm, in the first steps already.
  CHECK(difference(means(apart), {alone[0], alone[1]}) > 1e-2);
}

}  // namespace
}  // namespace ddprun::trainer
