// Its server refuses a whole report for one field that is too long or out of its range.
#include "launcher/export/trainer_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "rendezvous/json/json_text.h"

namespace ddprun::launcher {
namespace {

using StatusJson = nlohmann::ordered_json;

constexpr std::size_t metric_letters_max = 64;

void add_metric(StatusJson& metrics, const char* name, const std::string& value) {
  metrics.push_back({{"name", name}, {"value", value.substr(0, metric_letters_max)}});
}

std::string rfc3339(std::int64_t unix_s) {
  const auto time = static_cast<std::time_t>(unix_s);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

void add_progress(StatusJson& status, const RankProgress& progress, bool is_over) {
  if (progress.step < 0 || progress.total_steps <= 0) return;
  const std::int64_t done = std::min(progress.step, progress.total_steps);
  // 100 is for a job that has ended well.
  status["progressPercentage"] = std::min<std::int64_t>(
      99, static_cast<std::int64_t>(100.0 * static_cast<double>(done) /
                                    static_cast<double>(progress.total_steps)));
  if (!is_over && progress.step_s > 0 && progress.step_s < 1e6) {
    status["estimatedRemainingSeconds"] = static_cast<std::int64_t>(
        std::min(2e9, static_cast<double>(progress.total_steps - done) * progress.step_s));
  }
}

}  // namespace

std::string trainer_status(const JobSnapshot& job, std::int64_t now_unix_s,
                           std::optional<int> exit_status) {
  StatusJson status = StatusJson::object();
  StatusJson metrics = StatusJson::array();
  const auto first = std::find_if(job.ranks.begin(), job.ranks.end(), [](const RankSnapshot& rank) {
    return rank.progress.has_value();
  });
  if (first != job.ranks.end()) {
    const RankProgress& progress = *first->progress;
    add_progress(status, progress, exit_status.has_value());
    if (progress.step >= 0) add_metric(metrics, "step", std::to_string(progress.step));
    if (progress.epoch >= 0) add_metric(metrics, "epoch", std::to_string(progress.epoch));
    if (progress.loss) add_metric(metrics, "loss", fmt::format("{:.6g}", *progress.loss));
    if (!exit_status && progress.images_per_s > 0) {
      add_metric(metrics, "images_per_second_of_rank",
                 fmt::format("{:.6g}", progress.images_per_s));
    }
  }
  if (exit_status == 0) {
    status["progressPercentage"] = 100;
    status["estimatedRemainingSeconds"] = 0;
  }
  add_metric(metrics, "attempt", std::to_string(job.attempt));
  add_metric(metrics, "failures", std::to_string(job.failures_total));
  add_metric(metrics, "world_size", std::to_string(job.world_size));
  status["metrics"] = metrics;
  status["lastUpdatedTime"] = rfc3339(now_unix_s);
  return rendezvous::json_line(StatusJson{{"trainerStatus", status}});
}

}  // namespace ddprun::launcher
