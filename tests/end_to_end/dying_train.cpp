// `train`, but it says who it is when it begins an attempt, and kills itself at a named point:
// DYING_TRAIN="ATTEMPT RANK PHASE STEP", a phase being one that TrainingJob::on_phase tells of.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <sstream>

#include "trainer/run_train.h"
#include "trainer/training_job.h"

using namespace ddprun::trainer;

int main(int argc, char** argv) {
  int told_attempt = -1, attempt = -1, rank = -1;
  std::int64_t step = -1;
  std::string phase;
  const char* wish = std::getenv("DYING_TRAIN");
  std::istringstream(wish == nullptr ? "" : wish) >> attempt >> rank >> phase >> step;
  return run_train(argc, argv, [&](const TrainingJob& job, const std::string& begun) {
    if (job.env.restart_count != told_attempt) {
      told_attempt = job.env.restart_count;
      // One write, because ranks share the place that it goes to.
      std::ostringstream line;
      line << "attempt " << told_attempt << " rank " << job.env.rank << " of " << job.env.world_size
           << " is pid " << ::getpid() << " at step " << job.state.step << '\n';
      std::cout << line.str() << std::flush;
    }
    if (job.env.restart_count == attempt && job.env.rank == rank && begun == phase &&
        job.state.step == step) {
      ::kill(::getpid(), SIGKILL);
    }
  });
}
