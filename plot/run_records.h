// What the files of a run say: the lines of `train --metrics` and of `ddprun --event-log`, told
// apart by their words. A core: text in, numbers out.
//
// A file may be of a run that goes on, or that was killed in the middle of a line; or of any
// program that writes the same lines. So what cannot be read is left out and said, and nothing of a
// line is believed without a look: numbers are finite, and steps of a curve rise.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::plot {

struct Point {
  double at = 0;  // The step.
  double value = 0;

  bool operator==(const Point&) const = default;
};
using Curve = std::vector<Point>;  // Steps rise.

// Where the time of a rank's steps went, over all that its lines tell of.
struct RankTime {
  double step_s = 0;
  double data_s = 0;
  std::optional<double> waiting_s;  // For other ranks' gradients; nothing where no line has it.
  std::int64_t steps = 0;
};

// The program began, or began again.
struct Beginning {
  double step = 0;            // That it went on from.
  double reached = 0;         // What had been done before: what is between was done twice.
  double time_s = 0;          // Since 1970; 0: not told.
  std::int64_t restarts = 0;  // Of the launcher.
};

// What happened at a launcher, in seconds since 1970.
struct Happening {
  double time_s = 0;
  std::string what;
  bool bad = false;
};
struct AttemptSpan {
  std::int64_t attempt = 0;
  double began_s = 0;
  double ended_s = 0;  // As far as the log goes, while it has no end.
  std::optional<bool> succeeded;
};
// A launcher's part: one row of a timeline.
struct LauncherTrack {
  std::string host;
  std::int64_t pid = 0;
  double began_s = 0;
  double last_s = 0;
  std::vector<AttemptSpan> attempts;
  std::vector<Happening> happenings;
  std::optional<std::int64_t> exit_status;  // Nothing: it goes on, or was killed.
  std::optional<double> launched_s;         // From when its events count what has elapsed.
};

struct RunRecords {
  std::string name;  // What the user called it.

  std::string model, dataset;
  std::int64_t workers = 0;
  std::int64_t steps_wanted = 0;
  double steps_done = 0;  // As far as its lines tell.
  double began_s = 0;     // Since 1970, as all times; 0: no line of metrics was read.
  double last_s = 0;
  std::string ended;  // "end", or why it was stopped; "": it goes on, or was killed.

  Curve train_loss, validation_loss;
  Curve train_top1, validation_top1, averaged_top1;  // Percent; the last: of averaged weights.
  Curve learning_rate, images_per_s;
  std::vector<Beginning> beginnings;
  std::map<std::int64_t, RankTime> ranks;
  std::vector<LauncherTrack> launchers;
  std::vector<std::string> notes;  // What was left out, and why.
  int files_of_metrics = 0;        // That it was read from.
};

// Which rank wrote a file of metrics: its first "start" says so, otherwise 0. Nothing for what is
// no file of metrics, as an event log: that is told by the first line of either, since a file may
// have lost its beginning in the middle of a line.
std::optional<std::int64_t> rank_of_metrics(std::string_view text);

// Adds what `text` says, read from `file`, which notes name. Returns how many lines were
// understood.
std::size_t add_records(RunRecords& run, std::string_view text, const std::string& file);

}  // namespace ddprun::plot
