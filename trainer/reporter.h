// What a run tells: lines and a progress line on standard output, and JSON lines in a file. Only
// rank 0's reporter says anything.
//
// --metrics: one JSON object per line, appended. "event" is one of
//   start       model, dataset, images, parameters, world_size, batch_size, global_batch_size,
//               device, total_steps, resumed_from_step, restart_count
//   train       epoch, step, loss, loss_avg, prec1, prec1_avg, prec5, prec5_avg, lr, images_per_s,
//               step_s, data_s        (the last three: over the steps since the previous line)
//   validation  epoch, step, loss, prec1, prec5, best_prec1, images, seconds
//   checkpoint  step, path, seconds
//   bad_images  epoch, pass ("training" or "validation"), images: unreadable ones, of all ranks
//   end         step, best_prec1, seconds, train_s, images_per_s
// Times are in seconds; prec1 and prec5 in percent; step counts the optimizer steps of the whole
// run and epoch the full passes before this one. Every line has "time", seconds since 1970.
// Names are never reused for something else.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "trainer/meters.h"

namespace ddprun::trainer {

// A training step of rank 0, as its line shows it.
struct StepReport {
  std::int64_t epoch = 0;
  std::int64_t step = 0;           // Of the run, this one included.
  std::int64_t step_in_epoch = 0;  // This one included.
  std::int64_t steps_per_epoch = 0;
  Meter time_s, data_s, loss, prec1, prec5;  // Averages over the epoch.
  double window_step_s = 0;                  // Mean since the previous line.
  double window_data_s = 0;
  double images_per_s = 0;  // All workers, since the previous line.
  double learning_rate = 0;
  double remaining_s = 0;  // Until the last step, at this pace.
};

struct ValidationReport {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  std::int64_t images = 0;
  double loss = 0;
  double prec1 = 0;
  double prec5 = 0;
  double best_prec1 = 0;
  double seconds = 0;
};

std::string step_line(const StepReport& report);
std::string validation_line(const ValidationReport& report);
// One row of a terminal: `columns` characters at most.
std::string progress_line(const StepReport& report, std::size_t columns);

class Reporter {
 public:
  struct Options {
    bool enabled = true;    // False on all ranks but 0: every call does nothing.
    bool terminal = false;  // Draw the progress line, too.
    std::size_t columns = 80;
    std::filesystem::path metrics;  // Empty: none.
  };

  // Throws std::runtime_error when the metrics file cannot be opened.
  Reporter(std::ostream& out, Options options);

  void line(const std::string& text);                                  // A plain line.
  void warning(const std::string& text);                               // To standard error.
  void event(const std::string& name, nlohmann::ordered_json fields);  // To the metrics file.

  void progress(const StepReport& report);  // At most ten times a second; terminals only.
  bool wants_progress() const { return options_.enabled && options_.terminal; }
  void step(const StepReport& report);
  void validation(const ValidationReport& report);

 private:
  void clear_progress();

  std::ostream& out_;
  Options options_;
  std::ofstream metrics_;
  bool progress_shown_ = false;
  std::chrono::steady_clock::time_point progress_at_{};
};

}  // namespace ddprun::trainer
