// A training loop that outlives the loss of a worker or a node: those that are left keep process
// and state, a new worker or a spare takes the state over, and the step that was interrupted is
// done again.
//
//   ddprun --standalone --nproc-per-node 2 --max-restarts 3 build/bin/elastic_train
//   kill -9 PID        # of a worker, as it says
//
// Fits y = 3x + 1. A step is always the same `shards` parts of the data, whoever computes them: so
// its sum, and what comes of it, depends on the number of workers in the last bits at most.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>

#include "worker/declare_failure.h"
#include "worker/error_file.h"
#include "worker/membership.h"
#include "worker/wait_for_rank.h"

using namespace ddprun::worker;

namespace {

constexpr int shards = 4, samples_of_shard = 25;

// What a worker must not lose.
struct State {
  std::int64_t step = -1;  // -1: none yet.
  double slope = 0, offset = 0;
};

// All begin with the state of the furthest; with the initial one where nobody has any. Whole or not
// at all: a peer may be lost here, too.
void agree(Communicator& communicator, State& state) {
  const StateLead lead = find_lead(communicator, {state.step});
  State taken = lead.any ? state : State{.step = 0};
  static_assert(sizeof(State) == 3 * sizeof(double));
  communicator.broadcast(&taken, sizeof taken, DataType::UInt8, lead.root);
  state = taken;
}

void train(Communicator& communicator, State& state, std::int64_t steps) {
  while (state.step < steps) {
    double gradient[2] = {0, 0};
    for (int shard = communicator.rank(); shard < shards; shard += communicator.world_size()) {
      for (int i = 0; i < samples_of_shard; ++i) {
        const double x = (shard * samples_of_shard + i) / 100.0;
        const double error = state.slope * x + state.offset - (3 * x + 1);
        gradient[0] += error * x / (shards * samples_of_shard);
        gradient[1] += error / (shards * samples_of_shard);
      }
    }
    communicator.all_reduce(gradient, 2, DataType::Float64, ReduceOp::Sum);
    // Applied by each worker by itself, without a call that could fail in the middle.
    state.slope -= gradient[0];
    state.offset -= gradient[1];
    state.step += 1;
  }
}

void run(Membership& members, State& state, std::int64_t steps) {
  for (;;) {
    const WorkerEnv env = read_worker_env();
    std::unique_ptr<Communicator> communicator;
    try {
      communicator = make_cpu_communicator(env, members.options());
      const auto guard = members.guard(*communicator);
      agree(*communicator, state);
      std::cout << "rank " + std::to_string(env.rank) + " of " + std::to_string(env.world_size) +
                       " is pid " + std::to_string(::getpid()) + " at step " +
                       std::to_string(state.step) + "\n"
                << std::flush;
      train(*communicator, state, steps);
      communicator->barrier();  // Nobody leaves while another still needs the last sum.
      return;
    } catch (const CommunicatorError& error) {
      // A peer is gone: not this worker's failure, if the launcher says so, too.
      if (members.next_rank()) continue;
      if (members.job_is_over()) std::exit(1);
      declare_failure(communicator.get(), error.what());
      throw;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t steps = argc > 1 ? std::atoll(argv[1]) : 3'000'000;
  wait_for_rank();  // ddprun --spares
  install_error_handlers(read_worker_env());
  State state;
  {
    Membership members;
    run(members, state, steps);
  }
  std::cout << "step " << state.step << ": y = " << state.slope << " x + " << state.offset
            << std::endl;
}
