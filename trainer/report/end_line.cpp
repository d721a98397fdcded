// A start that found nothing left to train says so: "0.0 images/s" would look like a failure.
#include "trainer/report/end_line.h"

#include <fmt/format.h>

#include "worker/wording.h"

namespace ddprun::trainer {

std::string end_line(const RunEnd& run) {
  const std::string best =
      run.best_top1 ? fmt::format(", best top-1 {:.2f} %", *run.best_top1) : "";
  const std::string done = fmt::format("Done: {}{}; ", worker::counted(run.step, "step"), best);
  if (run.steps <= 0) {
    return done + fmt::format("all were done before this start (more: --epochs, --steps), {:.1f} s",
                              run.seconds);
  }
  const double rate = run.training_s > 0 ? static_cast<double>(run.images) / run.training_s : 0;
  return done + fmt::format(
                    "trained on {} in {:.1f} s ({:.1f} images/s), {} per worker of {:.4f} s "
                    "on average, {:.1f} s in all",
                    worker::counted(run.images, "image"), run.training_s, rate,
                    worker::counted(run.steps, "step"),
                    run.training_s / static_cast<double>(run.steps), run.seconds);
}

}  // namespace ddprun::trainer
