// One place for what is said first, so that console, metrics and TensorBoard do not drift apart.
#include "trainer/announce.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "trainer/gradient_travel.h"
#include "trainer/open_dataset.h"
#include "worker/wording.h"

namespace ddprun::trainer {
namespace {

std::string batch_text(const TrainingJob& job) {
  const BatchPlan& plan = job.plan;
  return fmt::format("{}{} x {}{} = {}", plan.replicas, job.options.shards ? " shards" : "",
                     job.options.accumulate > 1 ? fmt::format("{} x ", job.options.accumulate) : "",
                     plan.micro_batch_size, plan.global_batch_size);
}

// What TensorBoard shows under "Text": the command line, and what it came to.
std::string describe_run(const TrainingJob& job) {
  std::ifstream file("/proc/self/cmdline");
  std::string command{std::istreambuf_iterator<char>(file), {}};
  std::replace(command.begin(), command.end(), '\0', ' ');
  return fmt::format("    {}\n\n{} on {} ({} images); workers: {}; batch of each: {}; {}", command,
                     job.identity.model, job.identity.dataset, job.dataset().size(),
                     job.env.world_size, job.plan.batch_size, job.place.device.str());
}

// A line for a data set: "MNIST train: 60000 images ...; 28x28 pixels".
std::string data_line(const TrainingJob& job, const Dataset& dataset, bool train) {
  return fmt::format(
      "{}; {}", dataset.description(),
      describe(sample_options(job.options, dataset, job.image_size, train).transform));
}

}  // namespace

void announce(TrainingJob& job) {
  std::int64_t parameters = 0;
  for (const torch::Tensor& parameter : job.model->parameters()) parameters += parameter.numel();
  Reporter& reporter = *job.reporter;
  if (job.training_set) reporter.line(data_line(job, *job.training_set, /*train=*/true));
  if (job.validation_set) reporter.line(data_line(job, *job.validation_set, /*train=*/false));
  reporter.line(fmt::format(
      "{} ({:.2f} M parameters) on {}{}, {}; batches of {}{}", job.identity.model,
      static_cast<double>(parameters) / 1e6, job.place.device.str(),
      job.place.replicas.size() > 1
          ? fmt::format(" with {} replicas in each worker", job.place.replicas.size())
          : "",
      job.communicator().description(), batch_text(job),
      job.training_set
          ? fmt::format(", {} an epoch", worker::counted(job.plan.steps_per_epoch, "step"))
          : ""));
  if (job.options.shards && job.place.device.is_cuda() && !job.options.evaluate) {
    reporter.line(
        "--shards on a GPU: each step has the same samples with any number of workers, and each "
        "once; its bits are not the same twice, since GPU kernels and NCCL add in an order of "
        "their own");
  }
  tell_compression(job);
  // What begins takes back what TensorBoard shows of later steps; an evaluation begins none.
  if (!job.options.evaluate) reporter.begin(job.state.step, describe_run(job));
  MetricsFields fields{{"model", job.identity.model},
                       {"dataset", job.identity.dataset},
                       {"images", job.dataset().size()},
                       {"parameters", parameters},
                       {"rank", job.env.rank},
                       {"world_size", job.env.world_size},
                       {"shards", job.options.shards.value_or(0)},
                       {"batch_size", job.plan.batch_size},
                       {"global_batch_size", job.plan.global_batch_size},
                       {"accumulate", job.options.accumulate},
                       {"base_lr", job.options.learning_rate.base},
                       {"device", job.place.device.str()},
                       {"precision", name_of(job.options.precision)},
                       {"own_kernels", own_kernels_text(job.kernels)},
                       {"replicas", job.place.replicas.size()},
                       {"total_steps", job.plan.total_steps},
                       {"resumed_from_step", job.state.step},
                       {"restart_count", job.env.restart_count}};
  if (job.options.evaluate) fields.push_back({"evaluate", true});
  reporter.event("start", fields);
}

}  // namespace ddprun::trainer
