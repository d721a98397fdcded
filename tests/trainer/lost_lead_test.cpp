// The rank whose state an attempt is to begin with is lost while it gives it away, at each moment
// of that: over a communicator that is as NCCL's, where what a lost peer has sent is garbage and
// only wait() says so. And who that rank is.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/catch.h"
#include "tests/worker/torch/thread_communicator.h"
#include "trainer/models/model_zoo.h"
#include "trainer/recovery.h"
#include "trainer/resume.h"
#include "trainer/sgd_options.h"
#include "trainer/training_error.h"

namespace ddprun::trainer {
namespace {

constexpr int ranks = 3;

class LostAfter : public worker::ThreadCommunicator {
 public:
  LostAfter(worker::ThreadWorld& world, int rank, int calls)
      : ThreadCommunicator(world, rank), calls_(calls) {}

  void broadcast(void* data, std::size_t count, worker::DataType type, int root,
                 worker::Stream stream) override {
    count_call();
    ThreadCommunicator::broadcast(data, count, type, root, stream);
  }
  void wait(worker::Stream stream) override {
    count_call();
    ThreadCommunicator::wait(stream);
  }

 private:
  void count_call() { lost = lost || --calls_ < 0; }

  int calls_;
};

// What it holds, in its model and its momentum.
std::vector<torch::Tensor> copies_of(const TrainingJob& job) {
  std::vector<torch::Tensor> copies;
  for (const torch::Tensor& tensor : job.model->parameters()) {
    copies.push_back(tensor.detach().clone());
  }
  for (const auto& [name, buffer] : job.optimizer->momentum_buffers()) {
    copies.push_back(buffer.clone());
  }
  return copies;
}

bool same(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const torch::Tensor& x, const torch::Tensor& y) { return x.equal(y); });
}

// Two that have lived through a loss, the second one a step behind, and a new one.
void fill(TrainingJob& job, int rank) {
  job.env.rank = rank;
  job.env.world_size = ranks;
  job.options.shards = ranks;
  job.model = make_model({.name = "convnet", .input_channels = 1, .image_size = 16, .classes = 2});
  std::vector<std::pair<std::string, torch::Tensor>> parameters;
  for (const auto& entry : job.model->named_parameters()) {
    parameters.emplace_back(entry.key(), entry.value());
  }
  job.optimizer =
      std::make_unique<Sgd>(parameters, sgd_options(job.options, *job.model, /*own_kernel=*/false));
  job.checkpoint_parts.push_back(optimizer_part(*job.optimizer));
  for (auto& [name, parameter] : parameters) {
    parameter.mutable_grad() = torch::full_like(parameter, rank + 1);
  }
  job.optimizer->step(0.1);
  job.holds_state = rank < 2;
  if (job.holds_state) job.state.step = 42 - rank;
}

struct Outcome {
  bool lost = false, holds = false, kept = false;
  std::int64_t step = 0;
  std::vector<torch::Tensor> after;
};

Outcome take_part(worker::ThreadWorld& world, int rank, int calls) {
  at::set_num_threads(1);
  Outcome outcome;
  TrainingJob job;
  worker::seeded(static_cast<std::uint64_t>(rank), [&] { fill(job, rank); });
  job.place.communicator = std::make_unique<LostAfter>(world, rank, calls);
  const std::vector<torch::Tensor> before = copies_of(job);
  try {
    share_held_state(job, find_state(job));
  } catch (const worker::CommunicatorError&) {
    outcome.lost = true;
  }
  outcome.after = copies_of(job);
  outcome.kept = same(before, outcome.after);
  outcome.holds = job.holds_state;
  outcome.step = job.state.step;
  return outcome;
}

std::vector<Outcome> on_all_ranks(const std::function<Outcome(int rank)>& take) {
  std::vector<Outcome> outcomes(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { outcomes[static_cast<std::size_t>(rank)] = take(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::vector<Outcome> all_take_part(int calls) {
  worker::ThreadWorld world(ranks);
  return on_all_ranks([&](int rank) { return take_part(world, rank, calls); });
}

// As a launcher has it for its workers.
std::unique_ptr<SnapshotMemory> memory_of_node() {
  const int fd = ::memfd_create("test", MFD_CLOEXEC);
  if (::ftruncate(fd, 16 << 20) != 0) throw std::runtime_error("no memory for snapshots");
  auto memory = worker::RestartMemory::map(fd);
  ::close(fd);
  return std::make_unique<SnapshotMemory>(std::move(memory.value()));
}

}  // namespace

TEST_CASE("16.3: who is a step behind keeps its state until it has that of the lead",
          "[trainer][lost]") {
  int calls = 0;
  for (;; ++calls) {
    CAPTURE(calls);
    REQUIRE(calls < 100);
    const auto all = all_take_part(calls);
    REQUIRE(all[0].lost == all[1].lost);
    REQUIRE(all[0].lost == all[2].lost);
    CHECK((all[0].holds && all[0].kept && all[0].step == 42));
    if (!all[0].lost) {
      for (const Outcome& one : all) {
        CHECK((one.holds && one.step == 42 && same(one.after, all[0].after)));
      }
      break;
    }
    CHECK((all[1].holds && all[1].kept && all[1].step == 41));
    CHECK_FALSE(all[2].holds);
  }
  CHECK(calls > 5);  // Of position, model and parts: it was lost in each of them.
}

TEST_CASE("16.3: of one step the rank leads that has done what was due after it",
          "[trainer][lost]") {
  worker::ThreadWorld world(ranks);
  const auto all = on_all_ranks([&](int rank) {
    TrainingJob job;
    fill(job, rank);
    job.holds_state = true;
    job.state.step = 42;
    job.state.epoch = rank == 1 ? 3 : 2;  // The others were thrown out of its validation.
    job.place.communicator = std::make_unique<worker::ThreadCommunicator>(world, rank);
    share_held_state(job, find_state(job));
    return Outcome{.holds = job.holds_state, .step = job.state.epoch, .after = copies_of(job)};
  });
  for (const Outcome& one : all) CHECK((one.holds && one.step == 3));
}

TEST_CASE("16.5: memories of one step that differ are no reason to fail: rank 0 gives its own",
          "[trainer][lost]") {
  // As of two attempts: a node that was cut off kept its own, and the others did the step again.
  worker::ThreadWorld world(ranks);
  const auto all = on_all_ranks([&](int rank) {
    at::set_num_threads(1);
    std::ostringstream told;
    TrainingJob job;
    job.reporter = std::make_unique<Reporter>(told, Reporter::Options{.of_node = true});
    worker::seeded(static_cast<std::uint64_t>(rank), [&] { fill(job, rank); });
    job.holds_state = false;
    job.state.step = 42;
    job.identity.seed = 1;
    job.options.snapshot_every = 1;
    job.env.restart_count = 1;
    job.snapshots = memory_of_node();
    job.snapshots->keep(make_checkpoint(job.identity, job.state, *job.model, job.checkpoint_parts));
    const std::vector<torch::Tensor> before = copies_of(job);
    job.place.communicator = std::make_unique<worker::ThreadCommunicator>(world, rank);
    share_held_state(job, find_snapshot(job));
    Outcome outcome{.holds = job.holds_state, .step = job.state.step, .after = copies_of(job)};
    outcome.kept = same(before, outcome.after);
    return outcome;
  });
  CHECK(all[0].kept);
  CHECK_FALSE(all[1].kept);
  for (const Outcome& one : all) {
    CHECK((one.holds && one.step == 42 && same(one.after, all[0].after)));
  }
}

TEST_CASE("16.3: ranks that begin with unlike states are stopped before they train",
          "[trainer][lost]") {
  for (const bool from_memory : {false, true}) {
    worker::ThreadWorld world(ranks);
    const auto all = on_all_ranks([&](int rank) {
      at::set_num_threads(1);
      std::ostringstream told;
      TrainingJob job;
      job.reporter = std::make_unique<Reporter>(told, Reporter::Options{});
      fill(job, rank);
      job.place.communicator = std::make_unique<worker::ThreadCommunicator>(world, rank);
      try {
        (from_memory ? verify_snapshot : verify_shared)(job, {.any = true});
        return Outcome{};
      } catch (const TrainingError&) {
        return Outcome{.lost = true};
      }
    });
    CAPTURE(from_memory);
    for (const Outcome& one : all) CHECK(one.lost);
  }
}

}  // namespace ddprun::trainer
