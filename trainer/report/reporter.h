// What a run tells: lines and a progress line on standard output, TensorBoard's event files, and
// JSON lines in a file. People count epochs from 1; "epoch" in the files counts those that were
// done before, so it is 0 in the first one's "train" events. Only rank 0 says anything, but for
// --metrics with {rank} in the name: then every rank writes its own file, with its own losses,
// times and memory.
//
// --metrics: one JSON object per line, appended. "event" is one of
//   start       model, dataset, images (to train on, or with --evaluate to count), parameters,
//               rank (whose file it is), world_size, batch_size, global_batch_size, device,
//               total_steps, resumed_from_step, restart_count, accumulate, base_lr, precision,
//               replicas; evaluate (true: with --evaluate)
//   train       epoch, step, loss, loss_avg, prec1, prec1_avg, prec5, prec5_avg, lr,
//               images_per_s (all workers), step_s, data_s, exposed_comm_s (means over the steps
//               since the previous line; the last: communication that no computation hid, CPU
//               only), grad_norm (before clipping, with --clip-grad-norm), rss_bytes,
//               rss_peak_bytes, and on a GPU gpu_allocated_bytes, gpu_allocated_peak_bytes,
//               gpu_reserved_bytes
//   validation  epoch, step, loss, prec1, prec5, best_prec1, images, seconds; averaged (true: of
//               the weights that --ema averages)
//   loss_scale  step, taken (false: the step was left out), scale (of the next step), reason
//               (fp16: when it changes)
//   verify_sync step, running_statistics (true: compared too; all ranks' models were equal at the
//               end)
//   checkpoint_copied  step, waited_s (for the write before it), copied_s: what a save held up
//   checkpoint  step, path, seconds   (written)
//   shards      step, shards (of each rank, from the next step on), reason (--balance-shards)
//   bad_images  epoch, pass ("training" or "validation"), images (of all ranks, each once)
//   end         step, best_prec1, seconds, train_s, images_per_s, steps_per_worker, step_s_avg
//               (the last two: of this process, which may have resumed)
//   stopped     step, epoch, reason ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "--max-time"), saved
//               (whether that step is in a checkpoint); instead of "end"
// Times are in seconds; prec1 and prec5 in percent; step counts the optimizer steps of the whole
// run and epoch the full passes before this one. Every line has "time", seconds since 1970.
// Names are never reused for something else.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <thread>

#include "trainer/report/device_memory.h"
#include "trainer/report/epoch_line.h"
#include "trainer/report/line_schedule.h"
#include "trainer/report/memory_use.h"
#include "trainer/report/meters.h"
#include "trainer/report/metrics_file.h"
#include "trainer/report/metrics_line.h"
#include "trainer/report/page_schedule.h"
#include "trainer/report/tensorboard_writer.h"

namespace ddprun::trainer {

// A training step of rank 0, as its line shows it.
struct StepReport {
  std::int64_t epoch = 0;                    // Done before.
  std::int64_t epochs = 0;                   // Of the run.
  std::int64_t step = 0;                     // Of the run, this one included.
  std::int64_t step_in_epoch = 0;            // This one included.
  std::int64_t steps_per_epoch = 0;          // Of the last one: as far as --steps goes.
  Meter time_s, data_s, loss, prec1, prec5;  // Averages over what this attempt did of the epoch.
  double window_step_s = 0;                  // Mean since the previous line.
  double window_data_s = 0;
  std::optional<double> window_host_s;  // Of window_step_s until all was queued; on a GPU.
  double window_exposed_s = 0;          // Of it, waiting for communication.
  double images_per_s = 0;              // All workers, since the previous line.
  double learning_rate = 0;
  double remaining_s = 0;  // Until the end, at this pace and that of the last validation.
  std::optional<double> gradient_norm;
  MemoryUse memory;
  std::optional<DeviceMemory> gpu_memory;
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
  bool averaged = false;  // Of the averaged weights (--ema).
};

// As PyTorch's ImageNet example prints a step: of --print-freq.
std::string step_line(const StepReport& report);
// "epoch 3/90  1200/5005  train 0.412  top-1 91.20 %  lr 0.1  26k img/s  ETA 2:31": by time.
std::string short_step_line(const StepReport& report);
// "Test: [ 10/79]...": `report` counts batches of validation instead of steps.
std::string test_line(const StepReport& report);
std::string validation_line(const ValidationReport& report);
// One row of a terminal: as much as fits into `columns` characters, the least important left out.
// `since_s`: since the step was done. Where that is longer than steps take, the row says so instead
// of a speed and an end that nothing stands for any more.
std::string progress_line(const StepReport& report, std::size_t columns, double since_s = 0);

// Where this rank's JSON lines go; empty: nowhere. `option` as --metrics was given.
std::filesystem::path metrics_path(const std::string& option, int rank);

// Where TensorBoard's events go; empty: nowhere. `option` as --tensorboard was given. Those of an
// evaluation are a run of their own, below the training's: TensorBoard shows nothing more of a file
// once a newer one lies beside it, nor what a newer one has the same or an earlier step of, and the
// training may be going on.
std::filesystem::path events_folder(const std::filesystem::path& option, bool evaluation);

// All calls from one thread, but warning() and node_warning(), which may come from any.
class Reporter {
 public:
  struct Options {
    bool enabled = true;    // False on all ranks but 0: nothing but the metrics file.
    bool of_node = false;   // True on the first rank of each node, which tells what its node lacks.
    bool terminal = false;  // Draw the progress line, too.
    int rank_told = -1;  // Steps are told by every rank, and this is its number; -1: rank 0 alone.
    bool step_lines = false;  // --print-freq's lines; otherwise a line comes when it is time.
    // Of the terminal, asked for at each row, since people resize windows; 0: as it was before.
    std::function<std::size_t()> columns = [] { return std::size_t{80}; };
    std::filesystem::path metrics;      // Empty: none.
    std::filesystem::path tensorboard;  // A folder. Empty: none.
    std::filesystem::path page;         // Of `page_of`, written anew after epochs. Empty: none.
    std::string page_of;                // As --metrics was given, with all ranks' files.
  };

  // Throws std::runtime_error when a file cannot be opened, or no page be written where it shall.
  Reporter(std::ostream& out, Options options);
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  // The run goes on after `step` steps; `markdown` says what it is.
  void begin(std::int64_t step, const std::string& markdown);

  void line(const std::string& text);          // A plain line.
  void warning(const std::string& text);       // To standard error.
  void node_warning(const std::string& text);  // The same, of what may differ between nodes.
  void event(const std::string& name, const MetricsFields& fields);  // To the metrics file.

  // Whether a step is to be shown now: ten times a second on a terminal, or by time.
  bool progress_due() const;
  void progress(const StepReport& report);
  // A row of a terminal until something else is shown: "saving ...".
  void status(const std::string& text);
  // A batch of the validation after `epoch`, "epoch 3/90"; "" in none.
  void validating(const std::string& epoch, std::int64_t batch, std::int64_t batches);
  bool tells_steps() const { return options_.enabled || options_.rank_told >= 0; }
  bool tells_step_lines() const { return tells_steps() && options_.step_lines; }
  void step(const StepReport& report);
  void first_step(const StepReport& report);        // Of an epoch: a line alone.
  void validation_batch(const StepReport& report);  // The same for a batch of validation.
  // `in_epoch`: epoch() says it, too.
  void validation(const ValidationReport& report, bool in_epoch = false);
  // The epoch's line. One whose checkpoint is still being written waits for written(), or until
  // something else is to be told.
  void epoch(const EpochReport& report);
  void written(std::int64_t step);  // The checkpoint of this step is on the disk.
  // The last event; all files are complete after it.
  void end(const std::string& name, const MetricsFields& fields);
  void last_page() { write_page(When::End); }  // Of an evaluation, which has no such event.

 private:
  enum class When { Due, End };
  bool shows_row() const { return options_.enabled && options_.terminal && options_.rank_told < 0; }
  double now_s() const;

  // These take mutex_.
  void warn(const std::string& text);
  void line_in_time(const std::string& text, double printed_at_s);
  void show_row(const std::string& text, double drawn_at_s);
  void step_text(const std::string& text);
  void watch_for_a_stand();  // On a thread of its own.
  // And these only where they warn.
  void warn_of_tensorboard();
  void write_page(When when);
  void scalars(std::int64_t step, const std::vector<Scalar>& values);

  // These with mutex_ held.
  void print(const std::string& text);
  void tell_epoch();
  std::size_t row_columns();
  void draw(const std::string& row);
  void clear_progress();

  std::ostream& out_;
  Options options_;
  std::optional<MetricsFile> metrics_;
  std::optional<TensorboardWriter> tensorboard_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  PageSchedule page_schedule_;
  bool page_fails_ = false;

  // Of what is shown: the watching thread draws, and a loader's threads warn.
  mutable std::mutex mutex_;
  LineSchedule schedule_;
  std::optional<EpochReport> pending_;  // Its checkpoint is being written.
  double drawn_at_s_ = -1;
  std::condition_variable ended_;
  bool ending_ = false;
  bool row_shown_ = false;
  std::size_t columns_ = 80;
  std::optional<StepReport> last_step_;  // In the row that is shown.
  double last_step_s_ = 0;
  std::thread watch_;  // Where a row is shown.
};

}  // namespace ddprun::trainer
