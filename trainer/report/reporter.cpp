// The one place that writes to the console while training: a line must not run into the progress.
#include "trainer/report/reporter.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <iostream>
#include <stdexcept>

namespace ddprun::trainer {
namespace {

constexpr std::chrono::milliseconds progress_interval{100};

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 3600.0 * 24 * 365) return "?";
  const auto whole = static_cast<std::int64_t>(std::lround(seconds));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

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
      r.epoch, count_of(r.step_in_epoch, r.steps_per_epoch), r.time_s.value(), r.time_s.average(),
      r.data_s.value(), r.data_s.average(), r.loss.value(), r.loss.average(), r.prec1.value(),
      r.prec1.average(), r.prec5.value(), r.prec5.average(), r.images_per_s,
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
      " * {}Prec@1 {:.3f} Prec@5 {:.3f} Loss {:.4f} on {} images in {:.1f} s, best "
      "Prec@1 {:.3f}",
      r.averaged ? "EMA " : "", r.prec1, r.prec5, r.loss, r.images, r.seconds, r.best_prec1);
}

std::string progress_line(const StepReport& r, std::size_t columns) {
  std::string head =
      fmt::format("Epoch {} {}", r.epoch, count_of(r.step_in_epoch, r.steps_per_epoch));
  std::string tail = fmt::format(" ETA {}", duration_text(r.remaining_s));
  const auto append_if_it_fits = [&](const std::string& part) {
    if (head.size() + tail.size() + part.size() <= columns) tail += part;
  };
  append_if_it_fits(fmt::format(" loss {:.4f}", r.loss.average()));
  append_if_it_fits(fmt::format(" {:.0f} images/s", r.images_per_s));
  append_if_it_fits(fmt::format(" Prec@1 {:.2f}", r.prec1.average()));
  const std::size_t used = std::min(columns, head.size() + tail.size());
  const std::string text = head + bar(r, columns - used) + tail;
  return text.substr(0, columns);
}

std::filesystem::path metrics_path(const std::string& option, int rank) {
  constexpr std::string_view mark = "{rank}";
  const std::size_t at = option.find(mark);
  if (at == std::string::npos) return rank == 0 ? option : "";
  return std::string(option).replace(at, mark.size(), std::to_string(rank));
}

Reporter::Reporter(std::ostream& out, Options options) : out_(out), options_(std::move(options)) {
  if (options_.enabled && !options_.tensorboard.empty()) {
    tensorboard_.emplace(options_.tensorboard);
  }
  if (options_.metrics.empty()) return;
  metrics_.open(options_.metrics, std::ios::app);
  if (!metrics_) {
    throw std::runtime_error(fmt::format("--metrics: cannot open {} for appending: {}",
                                         options_.metrics.string(), std::strerror(errno)));
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

void Reporter::end(const std::string& name, const nlohmann::ordered_json& fields) {
  event(name, fields);
  if (!tensorboard_) return;
  tensorboard_->flush();
  warn_of_tensorboard();
}

void Reporter::warn_of_tensorboard() {
  if (const std::string problem = tensorboard_->take_problem(); !problem.empty()) warning(problem);
}

void Reporter::clear_progress() {
  if (!progress_shown_) return;
  out_ << "\r\x1b[K";
  progress_shown_ = false;
}

void Reporter::line(const std::string& text) {
  if (!options_.enabled) return;
  clear_progress();
  out_ << text << std::endl;
}

void Reporter::warning(const std::string& text) {
  if (!options_.enabled) return;
  clear_progress();
  std::cerr << "train: warning: " << text << std::endl;
}

void Reporter::event(const std::string& name, const nlohmann::ordered_json& fields) {
  if (!metrics_.is_open()) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  nlohmann::ordered_json json{{"event", name},
                              {"time", std::chrono::duration<double>(now).count()}};
  json.update(fields);
  // Paths are bytes, and need not be UTF-8.
  metrics_ << json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
           << std::endl;
  if (metrics_) return;
  const std::string reason = std::strerror(errno);
  metrics_.close();
  std::cerr << fmt::format(
                   "train: warning: --metrics: cannot write to {} ({}); nothing more is written "
                   "there",
                   options_.metrics.string(), reason)
            << std::endl;
}

void Reporter::progress(const StepReport& report) {
  const auto now = std::chrono::steady_clock::now();
  if (!wants_progress() || now - progress_at_ < progress_interval) return;
  progress_at_ = now;
  // A character in the last column makes some terminals begin the next line.
  out_ << '\r' << progress_line(report, options_.columns - 1) << "\x1b[K" << std::flush;
  progress_shown_ = true;
}

namespace {

nlohmann::ordered_json train_fields(const StepReport& r) {
  nlohmann::ordered_json fields{{"epoch", r.epoch},          {"step", r.step},
                                {"loss", r.loss.value()},    {"loss_avg", r.loss.average()},
                                {"prec1", r.prec1.value()},  {"prec1_avg", r.prec1.average()},
                                {"prec5", r.prec5.value()},  {"prec5_avg", r.prec5.average()},
                                {"lr", r.learning_rate},     {"images_per_s", r.images_per_s},
                                {"step_s", r.window_step_s}, {"data_s", r.window_data_s}};
  if (r.window_exposed_s) fields["exposed_comm_s"] = *r.window_exposed_s;
  if (r.gradient_norm) fields["grad_norm"] = *r.gradient_norm;
  fields["rss_bytes"] = r.memory.resident_bytes;
  fields["rss_peak_bytes"] = r.memory.resident_peak_bytes;
  if (r.gpu_memory) {
    fields["gpu_allocated_bytes"] = r.gpu_memory->allocated_bytes;
    fields["gpu_allocated_peak_bytes"] = r.gpu_memory->allocated_peak_bytes;
    fields["gpu_reserved_bytes"] = r.gpu_memory->reserved_bytes;
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
  if (r.window_exposed_s) values.push_back(scalar("train/exposed_comm_s", *r.window_exposed_s));
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
  if (wants_progress() || !tells_steps()) return;
  if (options_.rank_told < 0) return line(text);
  // In one piece: the workers' lines meet in one stream.
  out_ << fmt::format("[rank {}] {}\n", options_.rank_told, text) << std::flush;
}

void Reporter::first_step(const StepReport& r) { step_text(step_line(r)); }

void Reporter::validation_batch(const StepReport& r) { step_text(test_line(r)); }

void Reporter::step(const StepReport& r) {
  step_text(step_line(r));
  event("train", train_fields(r));
  scalars(r.step, train_scalars(r));
}

void Reporter::validation(const ValidationReport& r) {
  line(validation_line(r));
  nlohmann::ordered_json fields{{"epoch", r.epoch},   {"step", r.step},
                                {"loss", r.loss},     {"prec1", r.prec1},
                                {"prec5", r.prec5},   {"best_prec1", r.best_prec1},
                                {"images", r.images}, {"seconds", r.seconds}};
  if (r.averaged) fields["averaged"] = true;
  event("validation", fields);
  const std::string prefix = r.averaged ? "val_ema/" : "val/";
  scalars(r.step, {scalar(prefix + "loss", r.loss), scalar(prefix + "prec1", r.prec1),
                   scalar(prefix + "prec5", r.prec5)});
}

}  // namespace ddprun::trainer
