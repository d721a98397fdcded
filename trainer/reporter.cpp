// See reporter.h.
#include "trainer/reporter.h"

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

}  // namespace

std::string step_line(const StepReport& r) {
  return fmt::format(
             "Epoch: [{}][{}]\tTime {:6.3f} ({:6.3f})\tData {:6.3f} ({:6.3f})\tLoss {:.4e} "
             "({:.4e})\t"
             "Prec@1 {:6.2f} ({:6.2f})\tPrec@5 {:6.2f} ({:6.2f})\t{:.1f} images/s",
             r.epoch, count_of(r.step_in_epoch, r.steps_per_epoch), r.time_s.value(),
             r.time_s.average(), r.data_s.value(), r.data_s.average(), r.loss.value(),
             r.loss.average(), r.prec1.value(), r.prec1.average(), r.prec5.value(),
             r.prec5.average(), r.images_per_s) +
         (r.gradient_norm ? fmt::format("\tGradNorm {:.4f}", *r.gradient_norm) : "");
}

std::string validation_line(const ValidationReport& r) {
  return fmt::format(
      " * {}Prec@1 {:.3f} Prec@5 {:.3f} Loss {:.4f} on {} images in {:.1f} s, best "
      "Prec@1 {:.3f}",
      r.averaged ? "EMA " : "", r.prec1, r.prec5, r.loss, r.images, r.seconds, r.best_prec1);
}

std::string progress_line(const StepReport& r, std::size_t columns) {
  const double done = static_cast<double>(r.step_in_epoch) /
                      static_cast<double>(std::max<std::int64_t>(1, r.steps_per_epoch));
  constexpr int bar_columns = 20;
  const int filled = static_cast<int>(done * bar_columns);
  std::string text = fmt::format(
      "Epoch {} {} |{:#<{}}{:.<{}}| ETA {} loss {:.4f} Prec@1 {:.2f} {:.0f} images/s", r.epoch,
      count_of(r.step_in_epoch, r.steps_per_epoch), "", filled, "", bar_columns - filled,
      duration_text(r.remaining_s), r.loss.average(), r.prec1.average(), r.images_per_s);
  if (text.size() > columns) text.resize(columns);
  return text;
}

Reporter::Reporter(std::ostream& out, Options options) : out_(out), options_(std::move(options)) {
  if (!options_.enabled || options_.metrics.empty()) return;
  metrics_.open(options_.metrics, std::ios::app);
  if (!metrics_) {
    throw std::runtime_error(fmt::format("--metrics: cannot open {} for appending: {}",
                                         options_.metrics.string(), std::strerror(errno)));
  }
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

void Reporter::event(const std::string& name, nlohmann::ordered_json fields) {
  if (!metrics_.is_open()) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  nlohmann::ordered_json json{{"event", name},
                              {"time", std::chrono::duration<double>(now).count()}};
  json.update(fields);
  metrics_ << json.dump() << std::endl;
}

void Reporter::progress(const StepReport& report) {
  const auto now = std::chrono::steady_clock::now();
  if (!wants_progress() || now - progress_at_ < progress_interval) return;
  progress_at_ = now;
  out_ << '\r' << progress_line(report, options_.columns - 1) << "\x1b[K" << std::flush;
  progress_shown_ = true;
}

void Reporter::step(const StepReport& r) {
  // The progress line says the same on a terminal, without scrolling away what went before.
  if (!wants_progress()) line(step_line(r));
  nlohmann::ordered_json fields{{"epoch", r.epoch},          {"step", r.step},
                                {"loss", r.loss.value()},    {"loss_avg", r.loss.average()},
                                {"prec1", r.prec1.value()},  {"prec1_avg", r.prec1.average()},
                                {"prec5", r.prec5.value()},  {"prec5_avg", r.prec5.average()},
                                {"lr", r.learning_rate},     {"images_per_s", r.images_per_s},
                                {"step_s", r.window_step_s}, {"data_s", r.window_data_s}};
  if (r.gradient_norm) fields["grad_norm"] = *r.gradient_norm;
  event("train", std::move(fields));
}

void Reporter::validation(const ValidationReport& r) {
  line(validation_line(r));
  nlohmann::ordered_json fields{{"epoch", r.epoch},   {"step", r.step},
                                {"loss", r.loss},     {"prec1", r.prec1},
                                {"prec5", r.prec5},   {"best_prec1", r.best_prec1},
                                {"images", r.images}, {"seconds", r.seconds}};
  if (r.averaged) fields["averaged"] = true;
  event("validation", std::move(fields));
}

}  // namespace ddprun::trainer
