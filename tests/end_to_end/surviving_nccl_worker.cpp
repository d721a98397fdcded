// A loop over NCCL that outlives the loss of a worker: each step is a sum that it looks at, the
// same for any number of workers. Its memory is read by the host, so that it runs over
// tests/fake_cuda alone.
//
//   surviving_nccl_worker ATTEMPT WHERE [graph | late_graph]
//
// Goes on until it is in that attempt, and has made some steps. In attempt 0 local rank 1 kills
// itself WHERE: in NCCL's "init", in the "call" of a sum, "between" two of them; or does not come
// to the "meeting"; or "hangs" between two sums. With graph each sum is the replay of a CUDA graph,
// which is destroyed before the communicator; with late_graph after it, as it must not be.
#include <cuda_runtime_api.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "worker/declare_failure.h"
#include "worker/error_file.h"
#include "worker/membership.h"
#include "worker/progress_page.h"
#include "worker/wait_for_rank.h"

using namespace ddprun::worker;

namespace {

constexpr int shards = 4;
constexpr std::int64_t steps_min = 20, last_step_of_victim = 3;

struct State {
  std::int64_t step = -1;  // -1: none yet.
  std::int64_t total = 0;
};

std::int64_t part(std::int64_t step, int shard) { return 10 * step + shard; }

std::int64_t sum_of(std::int64_t step) {
  std::int64_t sum = 0;
  for (int shard = 0; shard < shards; ++shard) sum += part(step, shard);
  return sum;
}

// What a step sums, on the device.
class Sum {
 public:
  Sum(Communicator& communicator, cudaStream_t stream)
      : communicator_(communicator),
        stream_(stream),
        memory_(communicator.allocate(sizeof(State))),
        word_(static_cast<std::int64_t*>(memory_.get())) {}

  std::int64_t* word() { return word_; }
  void queue() { communicator_.all_reduce(word_, 1, DataType::Int64, ReduceOp::Sum, stream_); }

 private:
  Communicator& communicator_;
  cudaStream_t stream_;
  std::shared_ptr<void> memory_;
  std::int64_t* word_;
};

// A graph of one sum.
class Graph {
 public:
  Graph(Sum& sum, cudaStream_t stream) : stream_(stream) {
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    sum.queue();
    cudaStreamEndCapture(stream, &graph_);
    cudaGraphInstantiate(&exec_, graph_, 0);
  }
  ~Graph() {
    cudaGraphExecDestroy(exec_);
    cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch() { cudaGraphLaunch(exec_, stream_); }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

class Job {
 public:
  Job(int last_attempt, std::string where, const std::string& graphs)
      : last_attempt_(last_attempt),
        where_(std::move(where)),
        records_(!graphs.empty()),
        late_(graphs == "late_graph"),
        gpu_(read_worker_env().local_rank) {
    cudaSetDevice(gpu_);
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  }

  void run() {
    Membership members;
    for (;;) {
      env_ = read_worker_env();
      std::cout << "attempt " + std::to_string(env_.restart_count) + " rank " +
                       std::to_string(env_.rank) + " of " + std::to_string(env_.world_size) +
                       " is pid " + std::to_string(::getpid()) + "\n"
                << std::flush;
      std::unique_ptr<Communicator> communicator;
      try {
        communicator = meet(members);
        const auto guard = members.guard(*communicator);
        train(*communicator);
        communicator->barrier(stream_);
        return;
      } catch (const CommunicatorError& error) {
        std::cout << "thrown out: " + std::string(error.what()) + "\n" << std::flush;
        if (members.attempt_is_over()) {
          communicator.reset();
          late_graph_.reset();
          if (members.next_rank()) continue;
          if (members.job_is_over()) std::exit(1);
        }
        declare_failure(communicator.get(), error.what());
        throw;
      }
    }
  }

  const State& state() const { return state_; }

 private:
  bool dies(const std::string& where) const {
    return env_.restart_count == 0 && env_.local_rank == 1 && where_ == where;
  }
  void die_in(const std::string& function) const {
    ::setenv("FAKE_NCCL_KILL", (std::to_string(env_.rank) + ":" + function).c_str(), 1);
  }

  std::unique_ptr<Communicator> meet(const Membership& members) {
    while (dies("meeting")) ::pause();
    if (dies("init")) die_in("ncclCommInitRankConfig");
    CommunicatorOptions options = members.options();
    options.cuda_device = gpu_;
    if (late_) options.collective_timeout = std::chrono::seconds{4};  // And so of the end.
    return make_nccl_communicator(env_, options);
  }

  void train(Communicator& communicator) {
    Sum sum(communicator, stream_);
    take_state(communicator, sum);
    std::optional<Graph> own_graph;  // Goes before the memory of `sum`.
    std::optional<Graph>& graph = late_ ? late_graph_ : own_graph;
    if (records_) graph.emplace(sum, stream_);
    while (state_.step < steps_min || env_.restart_count < last_attempt_) {
      if (state_.step == last_step_of_victim) {
        if (dies("between")) ::raise(SIGKILL);
        if (dies("call")) die_in("ncclAllReduce");
        while (dies("hangs")) ::pause();
      }
      step(communicator, sum, graph ? &*graph : nullptr);
    }
    graph.reset();
  }

  void take_state(Communicator& communicator, Sum& sum) {
    const StateLead lead = find_lead(communicator, {state_.step});
    auto* const shared = reinterpret_cast<State*>(sum.word());
    *shared = lead.any ? state_ : State{.step = 0};
    communicator.broadcast(shared, sizeof(State), DataType::UInt8, lead.root, stream_);
    communicator.wait(stream_);
    state_ = *shared;
  }

  void step(Communicator& communicator, Sum& sum, Graph* graph) {
    ProgressPage::own().phase("step");
    *sum.word() = 0;
    for (int shard = communicator.rank(); shard < shards; shard += communicator.world_size()) {
      *sum.word() += part(state_.step, shard);
    }
    if (graph != nullptr) {
      graph->launch();
      communicator.replayed(stream_);
    } else {
      sum.queue();
    }
    communicator.wait(stream_);
    if (*sum.word() != sum_of(state_.step)) {
      throw std::runtime_error("a wrong sum of step " + std::to_string(state_.step) + ": " +
                               std::to_string(*sum.word()));
    }
    state_ = {state_.step + 1, state_.total + *sum.word()};
    ProgressPage::own().step_done({.step = state_.step});
    ProgressPage::own().phase("between");
  }

  const int last_attempt_;
  const std::string where_;
  const bool records_;
  const bool late_;
  const int gpu_;
  cudaStream_t stream_ = nullptr;
  std::optional<Graph> late_graph_;
  WorkerEnv env_;
  State state_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  wait_for_rank();
  install_error_handlers(read_worker_env());
  try {
    Job job(std::atoi(argv[1]), argv[2], argc > 3 ? argv[3] : "");
    job.run();
    std::int64_t expected = 0;
    for (std::int64_t step = 0; step < job.state().step; ++step) expected += sum_of(step);
    const bool right = job.state().total == expected;
    std::cout << std::string(right ? "right" : "wrong") + " after step " +
                     std::to_string(job.state().step) + "\n"
              << std::flush;
    return right ? 0 : 1;
  } catch (const std::exception& error) {
    std::cout << "failed: " + std::string(error.what()) + "\n" << std::flush;
    record_error(error.what());
    return 1;
  }
}
