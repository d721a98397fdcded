// `train`, but it says who it is when it begins an attempt, and kills itself at named points:
// DYING_TRAIN="ATTEMPT RANK PHASE STEP ...", a phase being one that TrainingJob::on_phase tells of.
// With stop:PHASE it is only told to stop there, by SIGTERM, and with halt:PHASE it is halted. With
// nan:PHASE one of its weights is no number from there on, as after a fault of its memory.
//
// SLOW_TRAIN="RANK MS": that rank takes so much longer for each shard.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trainer/run_train.h"
#include "trainer/training_job.h"

using namespace ddprun::trainer;

namespace {

struct Death {
  int attempt, rank;
  std::string phase;
  std::int64_t step;
};

std::vector<Death> read_deaths() {
  const char* const wish = std::getenv("DYING_TRAIN");
  std::istringstream text(wish == nullptr ? "" : wish);
  std::vector<Death> deaths;
  for (Death death; text >> death.attempt >> death.rank >> death.phase >> death.step;) {
    deaths.push_back(death);
  }
  return deaths;
}

// Of what this rank is to sleep before each shard.
std::chrono::milliseconds slowness_of(int rank) {
  const char* const wish = std::getenv("SLOW_TRAIN");
  std::istringstream text(wish == nullptr ? "-1 0" : wish);
  int slow = -1, ms = 0;
  text >> slow >> ms;
  return std::chrono::milliseconds(slow == rank ? ms : 0);
}

void ruin_a_weight(const TrainingJob& job) {
  const torch::NoGradGuard no_grad;
  job.model->parameters().front().fill_(std::nan(""));
}

}  // namespace

int main(int argc, char** argv) {
  int told_attempt = -1;
  bool told_to_stop = false;
  const std::vector<Death> deaths = read_deaths();
  return run_train(argc, argv, [&](const TrainingJob& job, const std::string& begun) {
    // Not while it is being put together: it has a step then that may be another one's.
    const bool stands = begun != "meet" && begun != "state";
    if (stands && job.env.restart_count != told_attempt) {
      told_attempt = job.env.restart_count;
      // One write, because ranks share the place that it goes to.
      std::ostringstream line;
      line << "attempt " << told_attempt << " rank " << job.env.rank << " of " << job.env.world_size
           << " is pid " << ::getpid() << " at step " << job.state.step << '\n';
      std::cout << line.str() << std::flush;
    }
    if (begun == "forward") std::this_thread::sleep_for(slowness_of(job.env.rank));
    for (const Death& death : deaths) {
      if (job.env.restart_count != death.attempt || job.env.rank != death.rank) continue;
      if (job.state.step != death.step) continue;
      if (begun == death.phase) ::kill(::getpid(), SIGKILL);
      // Once: a phase may begin again for each shard, and a second signal, a second later, ends the
      // process at once.
      if ("stop:" + begun == death.phase && !std::exchange(told_to_stop, true)) ::raise(SIGTERM);
      if ("halt:" + begun == death.phase) ::raise(SIGSTOP);
      if ("nan:" + begun == death.phase) ruin_a_weight(job);
    }
  });
}
