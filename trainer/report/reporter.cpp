// The one place that writes to the console while training: a line must not run into the progress.
#include "trainer/report/reporter.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <stdexcept>
#include <utility>

#include "plot/run_files.h"
#include "trainer/report/run_page.h"

namespace ddprun::trainer {
namespace {

constexpr double redraw_s = 0.1;
constexpr std::chrono::seconds look_interval{1};

// Steps may differ by a few times: a batch from a slow disk, a checkpoint's copy.
constexpr double standing_least_s = 5;
constexpr double standing_steps = 10;

std::string count_of(std::int64_t number, std::int64_t total) {
  const std::string all = std::to_string(total);
  return fmt::format("{:>{}}/{}", number, all.size(), all);
}

// How much of the epoch is done, in at most `columns` columns; "" when that is too few.
std::string bar(const StepReport& r, std::size_t columns) {
  constexpr std::size_t cells_max = 20;
  constexpr std::size_t cells_min = 8;
  constexpr std::size_t frame_columns = 3;  // " |" and "|"
  if (columns < cells_min + frame_columns) return "";
  const std::size_t cells = std::min(cells_max, columns - frame_columns);
  const double done = static_cast<double>(r.step_in_epoch) /
                      static_cast<double>(std::max<std::int64_t>(1, r.steps_per_epoch));
  const auto filled = std::min(cells, static_cast<std::size_t>(done * static_cast<double>(cells)));
  return fmt::format(" |{:#<{}}{:.<{}}|", "", filled, "", cells - filled);
}

}  // namespace

std::string step_line(const StepReport& r) {
  return fmt::format(
      "Epoch: [{}][{}]\tTime {:6.3f} ({:6.3f})\tData {:6.3f} ({:6.3f})\tLoss {:.4e} ({:.4e})\t"
      "Prec@1 {:6.2f} ({:6.2f})\tPrec@5 {:6.2f} ({:6.2f})\t{:.1f} images/s\tETA {}{}",
      r.epoch + 1, count_of(r.step_in_epoch, r.steps_per_epoch), r.time_s.value(),
      r.time_s.average(), r.data_s.value(), r.data_s.average(), r.loss.value(), r.loss.average(),
      r.prec1.value(), r.prec1.average(), r.prec5.value(), r.prec5.average(), r.images_per_s,
      duration_text(r.remaining_s),
      r.gradient_norm ? fmt::format("\tGradNorm {:.4f}", *r.gradient_norm) : "");
}

std::string test_line(const StepReport& r) {
  return fmt::format(
      "Test: [{}]\tTime {:6.3f} ({:6.3f})\tLoss {:.4e} ({:.4e})\tPrec@1 {:6.2f} ({:6.2f})\t"
      "Prec@5 {:6.2f} ({:6.2f})",
      count_of(r.step_in_epoch, r.steps_per_epoch), r.time_s.value(), r.time_s.average(),
      r.loss.value(), r.loss.average(), r.prec1.value(), r.prec1.average(), r.prec5.value(),
      r.prec5.average());
}

std::string validation_line(const ValidationReport& r) {
  return fmt::format(
      " * {}Prec@1 {:.3f} Prec@5 {:.3f} Loss {} on {} images in {:.1f} s, best "
      "Prec@1 {:.3f}",
      r.averaged ? "EMA " : "", r.prec1, r.prec5, loss_text(r.loss, 4), r.images, r.seconds,
      r.best_prec1);
}

std::string short_step_line(const StepReport& r) {
  return fmt::format("{}  {}  train {}  top-1 {:.2f} %  lr {:.4g}  {} img/s  ETA {}",
                     epoch_text(r.epoch + 1, r.epochs),
                     count_of(r.step_in_epoch, r.steps_per_epoch), loss_text(r.loss.average()),
                     r.prec1.average(), r.learning_rate, short_number(r.images_per_s),
                     duration_text(r.remaining_s));
}

std::string progress_line(const StepReport& r, std::size_t columns, double since_s) {
  const bool stands = since_s > std::max(standing_least_s, standing_steps * r.time_s.average());
  std::string head = fmt::format("{} {}", epoch_text(r.epoch + 1, r.epochs),
                                 count_of(r.step_in_epoch, r.steps_per_epoch));
  std::string tail = stands ? fmt::format(" no step for {}", duration_text(since_s))
                            : fmt::format(" ETA {}", duration_text(r.remaining_s));
  const auto append_if_it_fits = [&](const std::string& part) {
    if (head.size() + tail.size() + part.size() <= columns) tail += part;
  };
  append_if_it_fits(" train " + loss_text(r.loss.average()));
  if (!stands) append_if_it_fits(fmt::format(" {} img/s", short_number(r.images_per_s)));
  append_if_it_fits(fmt::format(" top-1 {:.2f} %", r.prec1.average()));
  const std::size_t used = std::min(columns, head.size() + tail.size());
  const std::string text = head + bar(r, columns - used) + tail;
  return text.substr(0, columns);
}

std::filesystem::path metrics_path(const std::string& option, int rank) {
  if (!plot::names_all_ranks(option)) return rank == 0 ? option : "";
  return plot::name_of_rank(option, rank);
}

std::filesystem::path events_folder(const std::filesystem::path& option, bool evaluation) {
  return evaluation && !option.empty() ? option / "evaluation" : option;
}

Reporter::Reporter(std::ostream& out, Options options) : out_(out), options_(std::move(options)) {
  if (options_.enabled && !options_.tensorboard.empty()) {
    tensorboard_.emplace(options_.tensorboard);
  }
  if (!options_.metrics.empty()) metrics_.emplace(options_.metrics);
  if (!options_.page.empty()) require_place(options_.page);
  if (shows_row()) watch_ = std::thread([this] { watch_for_a_stand(); });
}

Reporter::~Reporter() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    // Whether that checkpoint came to be is not known, and told by whoever does know.
    if (pending_) pending_->save = EpochReport::Save::None;
    tell_epoch();
    clear_progress();  // What ended the run is told next, and not behind the row.
    out_ << std::flush;
  }
  ended_.notify_all();
  if (watch_.joinable()) watch_.join();
}

double Reporter::now_s() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

// Steps cannot tell that there are none.
void Reporter::watch_for_a_stand() {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, look_interval, [this] { return ending_; })) {
    if (!row_shown_ || !last_step_) continue;
    draw(progress_line(*last_step_, row_columns(), now_s() - last_step_s_));
  }
}

void Reporter::begin(std::int64_t step, const std::string& markdown) {
  if (tensorboard_) tensorboard_->start(step, "run", markdown);
}

void Reporter::scalars(std::int64_t step, const std::vector<Scalar>& values) {
  if (!tensorboard_) return;
  tensorboard_->scalars(step, values);
  warn_of_tensorboard();
}

void Reporter::end(const std::string& name, const MetricsFields& fields) {
  {
    const std::lock_guard lock(mutex_);
    tell_epoch();
    clear_progress();
  }
  event(name, fields);
  write_page(When::End);
}

// It may go wrong after each epoch, of which once is enough, and the end.
void Reporter::write_page(When when) {
  const double began_s = now_s();
  if (options_.page.empty() || (when == When::Due && !page_schedule_.due(began_s))) return;
  try {
    write_run_page(options_.page, options_.page_of);
    page_fails_ = false;
  } catch (const std::runtime_error& error) {
    if (!std::exchange(page_fails_, true) || when == When::End) {
      warning(fmt::format("--report: {}{}", error.what(),
                          when == When::Due ? "; it is tried again after a later epoch" : ""));
    }
  }
  page_schedule_.written(began_s, now_s());
}

void Reporter::warn_of_tensorboard() {
  if (const std::string problem = tensorboard_->take_problem(); !problem.empty()) warning(problem);
}

void Reporter::clear_progress() {
  if (!row_shown_) return;
  out_ << "\r\x1b[K";
  row_shown_ = false;
  last_step_.reset();
}

// A character in the last column makes some terminals begin the next line.
std::size_t Reporter::row_columns() {
  if (const std::size_t now = options_.columns(); now > 0) columns_ = now;
  return columns_ - 1;
}

// What is too wide all the same is cut by the terminal (DECAWM off and on again): through a
// launcher's pipe nobody hears that its window has become narrower, and a row that went on in the
// next line would leave its begin behind each time.
void Reporter::draw(const std::string& row) {
  out_ << "\r\x1b[?7l" << row.substr(0, row_columns()) << "\x1b[K\x1b[?7h" << std::flush;
  row_shown_ = true;
}

void Reporter::print(const std::string& text) {
  tell_epoch();
  clear_progress();
  out_ << text << std::endl;
}

void Reporter::tell_epoch() {
  if (!pending_) return;
  const EpochReport report = *std::exchange(pending_, std::nullopt);
  clear_progress();
  out_ << epoch_line(report) << std::endl;
  schedule_.told_otherwise(now_s());
}

void Reporter::line(const std::string& text) {
  if (!options_.enabled) return;
  const std::lock_guard lock(mutex_);
  print(text);
}

void Reporter::warning(const std::string& text) {
  if (options_.enabled) warn(text);
}

void Reporter::node_warning(const std::string& text) {
  if (options_.enabled || options_.of_node) warn(text);
}

void Reporter::warn(const std::string& text) {
  const std::lock_guard lock(mutex_);
  tell_epoch();
  clear_progress();
  std::cerr << "train: warning: " << text << std::endl;
}

void Reporter::epoch(const EpochReport& report) {
  if (!options_.enabled) return;
  {
    const std::lock_guard lock(mutex_);
    tell_epoch();
    pending_ = report;
    if (report.save != EpochReport::Save::Begun) tell_epoch();
  }
  write_page(When::Due);
}

void Reporter::written(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  if (!pending_ || pending_->step != step) return;
  pending_->save = EpochReport::Save::Written;
  tell_epoch();
}

void Reporter::event(const std::string& name, const MetricsFields& fields) {
  if (!metrics_) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string told =
      metrics_->add(metrics_line(name, std::chrono::duration<double>(now).count(), fields));
  if (!told.empty()) warn(told);  // Of whatever rank.
}

bool Reporter::progress_due() const {
  if (!options_.enabled || options_.rank_told >= 0) return false;
  const std::lock_guard lock(mutex_);
  if (shows_row()) return drawn_at_s_ < 0 || now_s() - drawn_at_s_ >= redraw_s;
  return !options_.step_lines && schedule_.due(now_s());
}

void Reporter::progress(const StepReport& report) {
  const double now = now_s();
  if (!shows_row()) return line_in_time(short_step_line(report), now);
  const std::lock_guard lock(mutex_);
  drawn_at_s_ = now;
  last_step_ = report;
  last_step_s_ = now;
  draw(progress_line(report, row_columns()));
}

void Reporter::line_in_time(const std::string& text, double printed_at_s) {
  if (!options_.enabled) return;
  const std::lock_guard lock(mutex_);
  print(text);
  schedule_.printed(printed_at_s);
}

void Reporter::status(const std::string& text) {
  if (shows_row()) show_row(text, /*drawn_at_s=*/-1);
}

void Reporter::show_row(const std::string& text, double drawn_at_s) {
  const std::lock_guard lock(mutex_);
  last_step_.reset();
  drawn_at_s_ = drawn_at_s;
  draw(text);
}

void Reporter::validating(const std::string& epoch, std::int64_t batch, std::int64_t batches) {
  const double now = now_s();
  // The first batch of a validation tells nothing that lines before did not.
  if (!progress_due() || !(shows_row() || now >= LineSchedule::first_gap_s)) return;
  const std::string text = fmt::format("{}{}validating ... {}", epoch, epoch.empty() ? "" : "  ",
                                       count_of(batch, batches));
  if (shows_row()) {
    show_row(text, now);
  } else {
    line_in_time(text, now);
  }
}

namespace {

MetricsFields train_fields(const StepReport& r) {
  MetricsFields fields{{"epoch", r.epoch},          {"step", r.step},
                       {"loss", r.loss.value()},    {"loss_avg", r.loss.average()},
                       {"prec1", r.prec1.value()},  {"prec1_avg", r.prec1.average()},
                       {"prec5", r.prec5.value()},  {"prec5_avg", r.prec5.average()},
                       {"lr", r.learning_rate},     {"images_per_s", r.images_per_s},
                       {"step_s", r.window_step_s}, {"data_s", r.window_data_s}};
  if (r.window_host_s) fields.push_back({"host_s", *r.window_host_s});
  fields.push_back({"exposed_comm_s", r.window_exposed_s});
  if (r.gradient_norm) fields.push_back({"grad_norm", *r.gradient_norm});
  fields.push_back({"rss_bytes", r.memory.resident_bytes});
  fields.push_back({"rss_peak_bytes", r.memory.resident_peak_bytes});
  if (r.gpu_memory) {
    fields.push_back({"gpu_allocated_bytes", r.gpu_memory->allocated_bytes});
    fields.push_back({"gpu_allocated_peak_bytes", r.gpu_memory->allocated_peak_bytes});
    fields.push_back({"gpu_reserved_bytes", r.gpu_memory->reserved_bytes});
  }
  return fields;
}

Scalar scalar(std::string tag, double value) { return {std::move(tag), static_cast<float>(value)}; }

std::vector<Scalar> train_scalars(const StepReport& r) {
  std::vector<Scalar> values{
      scalar("train/loss", r.loss.value()),         scalar("train/prec1", r.prec1.value()),
      scalar("train/prec5", r.prec5.value()),       scalar("train/lr", r.learning_rate),
      scalar("train/images_per_s", r.images_per_s), scalar("train/step_s", r.window_step_s),
      scalar("train/data_s", r.window_data_s)};
  if (r.window_host_s) values.push_back(scalar("train/host_s", *r.window_host_s));
  values.push_back(scalar("train/exposed_comm_s", r.window_exposed_s));
  if (r.gradient_norm) values.push_back(scalar("train/grad_norm", *r.gradient_norm));
  const auto bytes = [](std::int64_t count) { return static_cast<double>(count); };
  values.push_back(scalar("memory/rss_bytes", bytes(r.memory.resident_bytes)));
  if (r.gpu_memory) {
    values.push_back(scalar("memory/gpu_allocated_bytes", bytes(r.gpu_memory->allocated_bytes)));
  }
  return values;
}

}  // namespace

// The progress line says the same on a terminal, without scrolling away what went before.
void Reporter::step_text(const std::string& text) {
  if (shows_row() || !tells_step_lines()) return;
  if (options_.rank_told < 0) return line(text);
  // In one piece: the workers' lines meet in one stream.
  const std::lock_guard lock(mutex_);
  out_ << fmt::format("[rank {}] {}\n", options_.rank_told, text) << std::flush;
}

void Reporter::first_step(const StepReport& r) { step_text(step_line(r)); }

void Reporter::validation_batch(const StepReport& r) { step_text(test_line(r)); }

void Reporter::step(const StepReport& r) {
  step_text(step_line(r));
  event("train", train_fields(r));
  scalars(r.step, train_scalars(r));
}

void Reporter::validation(const ValidationReport& r, bool in_epoch) {
  if (!in_epoch || options_.step_lines) line(validation_line(r));
  MetricsFields fields{{"epoch", r.epoch},   {"step", r.step},      {"loss", r.loss},
                       {"prec1", r.prec1},   {"prec5", r.prec5},    {"best_prec1", r.best_prec1},
                       {"images", r.images}, {"seconds", r.seconds}};
  if (r.averaged) fields.push_back({"averaged", true});
  event("validation", fields);
  const std::string prefix = r.averaged ? "val_ema/" : "val/";
  scalars(r.step, {scalar(prefix + "loss", r.loss), scalar(prefix + "prec1", r.prec1),
                   scalar(prefix + "prec5", r.prec5)});
}

}  // namespace ddprun::trainer
