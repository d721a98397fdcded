// Sums on the device and times on the host, brought together only for steps that are reported.
#include "trainer/step_meters.h"

#include <algorithm>
#include <utility>

namespace ddprun::trainer {

StepMeters::StepMeters(const BatchPlan& plan, torch::Device device,
                       std::chrono::nanoseconds exposed, double validation_s)
    : plan_(plan),
      validation_s_(validation_s),
      counts_(torch::zeros({3}, torch::dtype(torch::kFloat64).device(device))),
      last_counts_(counts_.clone()),
      exposed_(exposed),
      exposed_when_done_(exposed) {
  start_window();
}

// Lines that wait for a GPU and votes among the ranks: time of the steps, but none that more loader
// threads would save. Nor is it the host's in queueing a step.
void StepMeters::data_due() {
  after_step_s_ = watch_.lap();
  seconds_ += after_step_s_;
  window_.seconds += after_step_s_;
}

void StepMeters::data_ready() {
  data_s_ = watch_.lap();
  data_meter_.update(data_s_);
}

void StepMeters::step_done(const torch::Tensor& counts, std::int64_t counted, std::int64_t images) {
  last_counts_ = counts.to(counts_.device());  // With --shards they were summed up on the host.
  counts_ += last_counts_;
  last_counted_ = counted;
  counted_ += counted;
  const double step_s = data_s_ + watch_.lap();
  last_step_s_ = after_step_s_ + step_s;
  seconds_ += step_s;
  steps_ += 1;
  images_ += images;
  window_.steps += 1;
  window_.images += images;
  window_.seconds += step_s;
  window_.host_seconds += step_s;
  window_.data_seconds += data_s_;
  pace_.own_s += step_s;
  pace_.step_s += last_step_s_;
  pace_steps_ += 1;
  device_pace_.queued(last_step_s_);
}

void StepMeters::device_done(const std::function<std::chrono::nanoseconds()>& exposed) {
  static_cast<void>(
      last_counts_.to(torch::kCPU));  // On the stream of the steps, behind the update.
  const double waited = watch_.lap();
  seconds_ += waited;
  window_.seconds += waited;
  communicated(exposed());
  const std::chrono::duration<double> of_these =
      exposed_ - std::exchange(exposed_when_done_, exposed_);
  device_pace_.done(waited, of_these.count());
}

StepTimes StepMeters::last_times() const {
  const std::optional<StepPace>& pace = device_pace_.pace();
  if (on_cpu() || !pace) return {last_step_s_, data_s_, last_exposed_s()};
  return {pace->step_s, data_s_, pace->step_s - pace->own_s};
}

StepReport StepMeters::report(const TrainingState& state, double learning_rate) {
  // Only here the host waits for a GPU.
  const torch::Tensor all = counts_.to(torch::kCPU);
  const torch::Tensor last = last_counts_.to(torch::kCPU);
  const auto meter = [&](std::int64_t which, double scale) {
    return meter_of(scale * last[which].item<double>(), static_cast<double>(last_counted_),
                    scale * all[which].item<double>(), static_cast<double>(counted_));
  };
  StepReport report;
  report.epoch = state.epoch;
  report.step = state.step;
  report.step_in_epoch =
      (state.samples_done + plan_.global_batch_size - 1) / plan_.global_batch_size;
  report.steps_per_epoch =
      std::min(plan_.steps_per_epoch, report.step_in_epoch + plan_.total_steps - state.step);
  report.epochs = epochs_of(plan_);
  report.time_s.update(seconds_ / static_cast<double>(std::max<std::int64_t>(1, steps_)));
  report.time_s.update(last_step_s_, 0);  // The average has the waits for the device, too.
  report.data_s = data_meter_;
  report.loss = meter(0, 1);
  report.prec1 = meter(1, 100);
  report.prec5 = meter(2, 100);
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, window_.steps));
  report.window_step_s = window_.seconds / steps;
  report.window_data_s = window_.data_seconds / steps;
  const std::chrono::duration<double> window_exposed = exposed_ - window_.exposed_before;
  report.window_exposed_s = window_exposed.count() / steps;
  if (!on_cpu()) report.window_host_s = window_.host_seconds / steps;
  report.images_per_s =
      window_.seconds > 0 ? static_cast<double>(window_.images) / window_.seconds : 0;
  report.learning_rate = learning_rate;
  // One after each epoch that is not done, the last one whole or not.
  const std::int64_t validations = std::max<std::int64_t>(0, report.epochs - state.epoch);
  report.remaining_s =
      static_cast<double>(plan_.total_steps - state.step) * report.time_s.average() +
      static_cast<double>(validations) * validation_s_;
  return report;
}

StepPace StepMeters::take_pace() {
  const StepPace sums = std::exchange(pace_, {});
  const int steps = std::exchange(pace_steps_, 0);
  return {sums.own_s / steps, sums.step_s / steps};
}

void StepMeters::start_window() { window_ = {.exposed_before = exposed_}; }

void StepMeters::restart_clock() { watch_.lap(); }

}  // namespace ddprun::trainer
