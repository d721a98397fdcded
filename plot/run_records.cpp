// Both formats are lines of JSON with a word in "event"; the words of the two differ, so a file may
// even hold both.
#include "plot/run_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace ddprun::plot {
namespace {

using RecordJson = nlohmann::json;

// Far above what a line of either program has; a file without line ends is not read as one.
constexpr std::size_t line_bytes_max = 1 << 20;
constexpr std::size_t words_max = 400;
constexpr std::size_t launchers_max = 4'096;
// A picture of larger numbers says nothing, and sums of these still have a value.
constexpr double number_most = 1e30;
// Below it an axis would divide by what has no digits left.
constexpr double number_least = 1e-30;
// Whole numbers up to here are exact in a double.
constexpr double whole_most = 9e15;

std::optional<double> number(const RecordJson& line, const char* name) {
  const auto field = line.find(name);
  if (field == line.end() || !field->is_number()) return std::nullopt;
  const double value = field->get<double>();
  if (!(std::abs(value) <= number_most)) return std::nullopt;  // Nor of NaN.
  return std::abs(value) < number_least ? 0 : value;
}

// A count, a rank, a step: never negative.
std::optional<std::int64_t> whole(const RecordJson& line, const char* name) {
  const auto value = number(line, name);
  if (!value || *value < 0 || *value > whole_most) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

std::string words(const RecordJson& line, const char* name) {
  const auto field = line.find(name);
  if (field == line.end() || !field->is_string()) return "";
  std::string text = field->get<std::string>();
  if (text.size() <= words_max) return text;
  std::size_t end = words_max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + " ...";
}

// Steps are done again after a restart, and what was seen of them before is no part of the curve.
void cut_after(Curve& curve, double step) {
  while (!curve.empty() && curve.back().at > step) curve.pop_back();
}

// What was measured later of an earlier step takes nothing back.
void insert_point(Curve& curve, double step, std::optional<double> value) {
  if (!value) return;
  const auto place = std::lower_bound(curve.begin(), curve.end(), step,
                                      [](const Point& point, double at) { return point.at < at; });
  if (place != curve.end() && place->at == step) {
    place->value = *value;
  } else {
    curve.insert(place, {step, *value});
  }
}

void put(Curve& curve, double step, std::optional<double> value) {
  if (!value) return;
  while (!curve.empty() && curve.back().at >= step) curve.pop_back();
  curve.push_back({step, *value});
}

// The words of `train --metrics`.
bool is_of_metrics(const std::string& event) {
  return event == "start" || event == "train" || event == "validation" || event == "end" ||
         event == "stopped" || event == "loss_scale" || event == "verify_sync" ||
         event == "checkpoint_copied" || event == "checkpoint" || event == "bad_images";
}

bool is_of_event_log(const RecordJson& line) {
  return number(line, "time_unix_us") && line.contains("launcher_pid");
}

// Reads the lines of one file of metrics; what they mean depends on those before.
class MetricsReader {
 public:
  // The beginning of a file may be lost. Of a run's first file it was `rank`'s; of a later one it
  // may be anybody's, and is no part of a curve.
  MetricsReader(RunRecords& run, std::int64_t rank)
      : run_(run), whose_is_known_(run.files_of_metrics == 0), rank_(rank) {}

  bool take(const std::string& event, const RecordJson& line) {
    if (!is_of_metrics(event)) return false;
    if (taken_++ == 0) ++run_.files_of_metrics;
    whose_is_known_ = whose_is_known_ || event == "start";
    if (whose_is_known_) {
      add(event, line);
    } else {
      ++left_out_;
    }
    return true;
  }
  // Lines before the first one that says whose they are.
  std::size_t left_out() const { return left_out_; }

 private:
  void add(const std::string& event, const RecordJson& line) {
    const auto time_s = number(line, "time");
    const auto step = whole(line, "step");
    if (event == "start") {
      begin(line, time_s.value_or(0));
    } else if (event == "train" && step) {
      train(line, static_cast<double>(*step));
    } else if (event == "validation" && step) {
      validation(line, static_cast<double>(*step));
    } else if (event == "end" || event == "stopped") {
      if (rank_ == 0 && step) run_.steps_done = static_cast<double>(*step);
      if (rank_ == 0) run_.ended = event == "end" ? "end" : "stopped: " + words(line, "reason");
    }
    if (rank_ == 0 && time_s && !beside_run_) note_time(*time_s);
  }

  void note_time(double time_s) {
    if (time_s <= 0) return;
    if (run_.began_s == 0) run_.began_s = time_s;
    run_.last_s = std::max(run_.last_s, time_s);
  }

  void begin(const RecordJson& line, double time_s) {
    rank_ = whole(line, "rank").value_or(0);
    const auto evaluate = line.find("evaluate");
    beside_run_ = evaluate != line.end() && *evaluate == true && !run_.beginnings.empty();
    if (beside_run_) return;
    const auto from = static_cast<double>(whole(line, "resumed_from_step").value_or(0));
    if (rank_ == 0) {
      run_.model = words(line, "model");
      run_.dataset = words(line, "dataset");
      run_.workers = whole(line, "world_size").value_or(0);
      run_.steps_wanted = whole(line, "total_steps").value_or(0);
      run_.ended.clear();
      run_.beginnings.push_back(
          {from, last_step_.value_or(0), time_s, whole(line, "restart_count").value_or(0)});
      for (Curve* curve :
           {&run_.train_loss, &run_.validation_loss, &run_.train_top1, &run_.validation_top1,
            &run_.averaged_top1, &run_.learning_rate, &run_.images_per_s}) {
        cut_after(*curve, from);
      }
    }
    last_step_ = from;
  }

  void train(const RecordJson& line, double step) {
    if (rank_ == 0) {
      run_.steps_done = step;
      put(run_.train_loss, step, number(line, "loss"));
      put(run_.train_top1, step, number(line, "prec1_avg"));
      put(run_.learning_rate, step, number(line, "lr"));
      put(run_.images_per_s, step, number(line, "images_per_s"));
    }
    // The times of a line are means over the steps since the line before, which may be lost.
    const double steps = step - last_step_.value_or(step);
    last_step_ = step;
    const auto step_s = number(line, "step_s");
    const auto data_s = number(line, "data_s");
    if (steps <= 0 || !step_s || !data_s || *step_s < 0 || *data_s < 0) return;
    RankTime& time = run_.ranks[rank_];
    time.step_s += *step_s * steps;
    time.data_s += *data_s * steps;
    time.steps += static_cast<std::int64_t>(std::min(steps, whole_most));
    const auto waiting_s = number(line, "exposed_comm_s");
    if (waiting_s && *waiting_s >= 0) {
      time.waiting_s = time.waiting_s.value_or(0) + *waiting_s * steps;
    }
  }

  void validation(const RecordJson& line, double step) {
    if (rank_ != 0) return;
    const auto add = beside_run_ ? insert_point : put;
    const auto averaged = line.find("averaged");
    if (averaged != line.end() && *averaged == true) {
      add(run_.averaged_top1, step, number(line, "prec1"));
      return;
    }
    add(run_.validation_loss, step, number(line, "loss"));
    add(run_.validation_top1, step, number(line, "prec1"));
  }

  RunRecords& run_;
  bool whose_is_known_;
  std::size_t taken_ = 0;
  std::size_t left_out_ = 0;
  std::int64_t rank_;
  std::optional<double> last_step_;
  bool beside_run_ = false;  // The lines are of `train --evaluate`, in the file of what it counts.
};

LauncherTrack& track_of(RunRecords& run, const RecordJson& line, double time_s) {
  const std::string host = words(line, "host");
  const std::int64_t pid = whole(line, "launcher_pid").value_or(0);
  for (auto track = run.launchers.rbegin(); track != run.launchers.rend(); ++track) {
    if (track->host == host && track->pid == pid) return *track;
  }
  if (run.launchers.size() >= launchers_max) return run.launchers.back();
  run.launchers.push_back({host, pid, time_s, time_s, {}, {}, std::nullopt, std::nullopt});
  return run.launchers.back();
}

// When a line was written: what had elapsed, since the wall clock of the launcher's first line. The
// wall clock alone may be set while a job runs.
double time_of(LauncherTrack& track, const std::string& event, const RecordJson& line,
               double wall_s) {
  const auto elapsed_us = number(line, "elapsed_us");
  if (!elapsed_us) return wall_s;
  const double elapsed_s = *elapsed_us / 1e6;
  // A later launcher may have the same pid.
  if (!track.launched_s || event == "launcher_started") track.launched_s = wall_s - elapsed_s;
  return *track.launched_s + elapsed_s;
}

// "rank 3 ended by SIGKILL", or nothing for an end that is no failure of its own.
std::string failure_of(const RecordJson& line) {
  const auto stopped = line.find("stopped");
  if (stopped != line.end() && *stopped == true) return "";
  const std::string signal = words(line, "signal");
  const std::int64_t code = whole(line, "exit_code").value_or(0);
  if (signal.empty() && code == 0) return "";
  const std::string rank = fmt::format("rank {}", whole(line, "rank").value_or(0));
  return signal.empty() ? fmt::format("{} ended with {}", rank, code)
                        : fmt::format("{} ended by {}", rank, signal);
}

void end_attempt(LauncherTrack& track, double time_s, bool succeeded) {
  if (track.attempts.empty()) return;
  track.attempts.back().ended_s = time_s;
  track.attempts.back().succeeded = succeeded;
}

// Of an event log. Returns whether the line is one of it.
bool take_event(RunRecords& run, const std::string& event, const RecordJson& line) {
  if (!is_of_event_log(line)) return false;
  const double wall_s = number(line, "time_unix_us").value_or(0) / 1e6;
  LauncherTrack& track = track_of(run, line, wall_s);
  const double time_s = time_of(track, event, line, wall_s);
  track.last_s = std::max(track.last_s, time_s);
  if (event == "attempt_started") {
    track.attempts.push_back({whole(line, "attempt").value_or(0), time_s, time_s, std::nullopt});
  } else if (event == "attempt_ended") {
    const auto succeeded = line.find("succeeded");
    end_attempt(track, time_s, succeeded != line.end() && *succeeded == true);
  } else if (event == "worker_ended") {
    const std::string failure = failure_of(line);
    if (!failure.empty()) track.happenings.push_back({time_s, failure, true});
  } else if (event == "signal_received") {
    track.happenings.push_back({time_s, "ddprun got " + words(line, "signal"), false});
  } else if (event == "attempt_verdict" || event == "job_ended") {
    if (event == "job_ended") track.exit_status = whole(line, "exit_status");
    const bool bad = event == "attempt_verdict" || whole(line, "exit_status") != 0;
    const std::string why = words(line, "why");
    if (!why.empty()) track.happenings.push_back({time_s, why, bad});
  }
  if (!track.attempts.empty() && !track.attempts.back().succeeded) {
    track.attempts.back().ended_s = std::max(track.attempts.back().began_s, time_s);
  }
  return true;
}

// The lines of a text, the last one with whether it has an end. Until `take` says that no more is
// wanted.
template <class Take>
void for_each_line(std::string_view text, const Take& take) {
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const bool whole_line = end != std::string_view::npos;
    std::string_view line = text.substr(0, end);
    text.remove_prefix(whole_line ? end + 1 : text.size());
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (!take(++number, line, whole_line)) return;
  }
}

RecordJson parsed(std::string_view line) {
  if (line.size() > line_bytes_max) return RecordJson::value_t::discarded;
  return RecordJson::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
}

}  // namespace

std::optional<std::int64_t> rank_of_metrics(std::string_view text) {
  std::optional<std::int64_t> rank;
  for_each_line(text, [&](std::size_t, std::string_view line, bool) {
    const RecordJson record = parsed(line);
    if (!record.is_object()) return true;
    if (!rank && is_of_event_log(record)) return false;
    const std::string event = words(record, "event");
    if (!is_of_metrics(event)) return true;
    // Until it says so itself, as after a restart in a file that has lost its beginning.
    rank = event == "start" ? whole(record, "rank").value_or(0) : 0;
    return event != "start";
  });
  return rank;
}

std::size_t add_records(RunRecords& run, std::string_view text, const std::string& file) {
  MetricsReader metrics(run, rank_of_metrics(text).value_or(0));
  std::size_t understood = 0, broken = 0, first_broken = 0;
  for_each_line(text, [&](std::size_t number, std::string_view line, bool has_end) {
    if (line.empty()) return true;
    const RecordJson record = parsed(line);
    if (!record.is_object()) {
      if (!has_end) {
        // Whoever writes it has not come to its end, or never will.
        run.notes.push_back(
            fmt::format("{}: line {}, the last one, is only half there; left out", file, number));
        return true;
      }
      if (broken++ == 0) first_broken = number;
      return true;
    }
    const std::string event = words(record, "event");
    if (take_event(run, event, record) || metrics.take(event, record)) ++understood;
    return true;
  });
  if (broken > 0) {
    run.notes.push_back(fmt::format("{}: {} no JSON object (the first: line {}); left out", file,
                                    broken == 1 ? "1 line is" : fmt::format("{} lines are", broken),
                                    first_broken));
  }
  if (const std::size_t count = metrics.left_out(); count > 0) {
    run.notes.push_back(
        fmt::format("{}: its beginning is lost, and {} not say of which rank {}; left out", file,
                    count == 1 ? "1 line does" : fmt::format("{} lines do", count),
                    count == 1 ? "it is" : "they are"));
  }
  return understood;
}

}  // namespace ddprun::plot
