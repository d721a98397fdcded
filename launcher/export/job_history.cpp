// Steps of an attempt begin below those of the one before: the curves are cut there, as in a
// report.
#include "launcher/export/job_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace ddprun::launcher {
namespace {

constexpr std::size_t points_max = 4'096;
constexpr std::size_t happenings_max = 200;
constexpr std::size_t spans_max = 1'000;

void append(plot::Curve& curve, double step, double value) {
  while (!curve.empty() && curve.back().at >= step) curve.pop_back();
  curve.push_back({step, value});
  if (curve.size() < points_max) return;
  // Each second one goes, so that a curve always reaches from the start to now.
  std::size_t kept = 0;
  for (std::size_t i = 0; i < curve.size(); i += 2) curve[kept++] = curve[i];
  curve.resize(kept);
}

// Nothing while it goes on.
std::optional<bool> how_ended(const JobSnapshot& job) {
  if (job.state == NodeState::Succeeded) return true;
  if (job.state != NodeState::Stopped && job.state != NodeState::Done) return std::nullopt;
  // Between two looks a job may have succeeded and be about to end.
  return !job.ranks.empty() &&
         std::all_of(job.ranks.begin(), job.ranks.end(),
                     [](const RankSnapshot& rank) { return rank.state == RankState::Succeeded; });
}

}  // namespace

void JobHistory::add(const JobSnapshot& job, double now_s) {
  records_.name = job.run_id;
  records_.model = job.program;
  records_.workers = job.world_size;
  if (records_.began_s == 0) records_.began_s = static_cast<double>(job.started_unix_s);
  records_.last_s = now_s;
  if (records_.launchers.empty()) {
    records_.launchers.push_back({job.host, job.launcher_pid, now_s, now_s, {}, {}});
  }
  note_attempt(job, now_s);
  note_failures(job, now_s);
  note_progress(job);
}

void JobHistory::note_attempt(const JobSnapshot& job, double now_s) {
  plot::LauncherTrack& track = records_.launchers.front();
  track.last_s = now_s;
  if (job.attempts > attempts_) {
    const double began_s = std::max(track.began_s, now_s - job.since_s);
    if (!track.attempts.empty() && !track.attempts.back().succeeded) {
      track.attempts.back().succeeded = false;
      track.attempts.back().ended_s = std::min(track.attempts.back().ended_s, began_s);
    }
    if (track.attempts.size() < spans_max) {
      track.attempts.push_back({job.attempt, began_s, now_s, std::nullopt});
    }
    awaits_step_ = attempts_ > 0;
    attempts_ = job.attempts;
  }
  if (track.attempts.empty() || track.attempts.back().succeeded) return;
  track.attempts.back().ended_s = now_s;
  track.attempts.back().succeeded = how_ended(job);
}

void JobHistory::note_failures(const JobSnapshot& job, double now_s) {
  plot::LauncherTrack& track = records_.launchers.front();
  auto& happenings = track.happenings;
  // The snapshot has the last ones of all that there were.
  const int missed =
      std::min<int>(job.failures_total - failures_, static_cast<int>(job.failures.size()));
  for (std::size_t i = job.failures.size() - static_cast<std::size_t>(std::max(0, missed));
       i < job.failures.size(); ++i) {
    const SeenFailure& failure = job.failures[i];
    // Told by the wall clock, which may have been set: then it was just now.
    const auto told_s = static_cast<double>(failure.time_unix_s);
    const bool plausible = told_s >= std::floor(records_.began_s) && told_s <= now_s;
    happenings.push_back({plausible ? told_s : now_s,
                          fmt::format("attempt {}: {}{}{}", failure.attempt, failure.text,
                                      failure.what.empty() ? "" : ": ", failure.what),
                          true});
    if (happenings.size() > happenings_max) happenings.erase(happenings.begin());
  }
  failures_ = job.failures_total;
}

void JobHistory::note_progress(const JobSnapshot& job) {
  double step = -1, images_per_s = 0;
  std::optional<double> loss;
  records_.ranks.clear();
  for (const RankSnapshot& rank : all_ranks(job)) {
    if (!rank.progress || has_ended(rank)) continue;
    const RankProgress& progress = *rank.progress;
    step = std::max(step, static_cast<double>(progress.step));
    images_per_s += progress.images_per_s;
    if (!loss) loss = progress.loss;
    records_.steps_wanted = std::max(records_.steps_wanted, progress.total_steps);
    if (progress.step_s > 0) {
      records_.ranks[rank.rank] = {progress.step_s, progress.data_s, progress.wait_s, 1};
    }
  }
  if (step < 0) return;
  if (records_.beginnings.empty() || awaits_step_) {
    const double reached = records_.images_per_s.empty() ? 0 : records_.images_per_s.back().at;
    if (records_.beginnings.size() < spans_max) {
      records_.beginnings.push_back({step, reached, records_.last_s, attempts_ - 1});
    }
    awaits_step_ = false;
  }
  append(records_.images_per_s, step, images_per_s);
  if (loss) append(records_.train_loss, step, *loss);
}

}  // namespace ddprun::launcher
