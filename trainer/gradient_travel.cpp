// From options to a hook of the wrapped model, and in words.
#include "trainer/gradient_travel.h"

#include <fmt/format.h>

#include "trainer/report/memory_plan.h"
#include "trainer/report/reporter.h"
#include "worker/torch/hooks/narrow_gradients.h"

namespace ddprun::trainer {
namespace {

worker::PowerSgdOptions power_sgd_options(const TrainOptions& options) {
  worker::PowerSgdOptions power{.rank = *options.power_sgd, .seed = options.seed};
  power.start_step = options.power_sgd_start.value_or(power.start_step);
  return power;
}

}  // namespace

std::shared_ptr<worker::PowerSgd> make_power_sgd(const TrainingJob& job) {
  if (!job.options.power_sgd || job.env.world_size == 1) return nullptr;
  return std::make_shared<worker::PowerSgd>(power_sgd_options(job.options));
}

std::shared_ptr<worker::CommunicationHook> make_communication_hook(const TrainingJob& job) {
  if (job.power_sgd) return job.power_sgd;
  const TrainOptions& options = job.options;
  if (options.gradient_type == GradientType::Parameters) return nullptr;
  const bool bfloat16 = options.gradient_type == GradientType::BFloat16;
  return std::make_shared<worker::NarrowGradients>(bfloat16 ? torch::kBFloat16 : torch::kHalf);
}

void share_errors(TrainingJob& job) {
  if (job.power_sgd) job.power_sgd->share_errors(job.communicator());
}

void tell_compression(TrainingJob& job) {
  if (!job.options.power_sgd || job.env.world_size == 1 || job.options.evaluate) return;
  if (job.state.step > 0 && job.power_sgd->memory().steps == 0) {
    job.reporter->warning(
        "--power-sgd begins anew: the checkpoint does not have what earlier steps left out");
  }
  const worker::PowerSgdOptions options = power_sgd_options(job.options);
  const auto [whole, travels] = worker::power_sgd_bytes(job.model->parameters(), options);
  if (travels == whole) {
    return job.reporter->warning(fmt::format(
        "--power-sgd {}: no gradient of this model gets smaller so, and all travel whole",
        options.rank));
  }
  const std::int64_t all = options.start_step - job.power_sgd->memory().steps;
  const double percent = 100 * static_cast<double>(travels) / static_cast<double>(whole);
  job.reporter->line(fmt::format("PowerSGD: {:.1f} % of {} of gradients travel in a step{}",
                                 percent, bytes_text(whole),
                                 all <= 0 ? "" : fmt::format(", all in the first {}", all)));
}

}  // namespace ddprun::trainer
