// Fields stand in one order always, and those without a value are left out: no "val nan".
#include "trainer/report/epoch_line.h"

#include <fmt/format.h>

#include <cmath>

namespace ddprun::trainer {
namespace {

std::string save_text(const EpochReport& r) {
  std::string text = r.save == EpochReport::Save::Written ? "saved"
                     : r.save == EpochReport::Save::Begun ? "saving"
                                                          : "";
  if (r.best) text += text.empty() ? "best" : ", best";
  return text;
}

}  // namespace

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 3600.0 * 24 * 365) return "?";
  const auto whole = static_cast<std::int64_t>(std::lround(seconds));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string short_number(double value) {
  if (!(value >= 0) || std::isinf(value)) return "?";
  // The bounds are where rounding would lengthen the number: 9.95 is "10" and not "10.0".
  if (value < 9.95) return fmt::format("{:.1f}", value);
  if (value < 999.5) return fmt::format("{:.0f}", value);
  if (value < 9'950) return fmt::format("{:.1f}k", value / 1e3);
  if (value < 999'500) return fmt::format("{:.0f}k", value / 1e3);
  return fmt::format("{:.1f}M", value / 1e6);
}

std::string loss_text(double loss, int decimals) {
  constexpr double longest = 1e6;  // What diverges has forty digits before it is infinite.
  return std::abs(loss) < longest || !std::isfinite(loss) ? fmt::format("{:.{}f}", loss, decimals)
                                                          : fmt::format("{:.{}e}", loss, decimals);
}

std::string epoch_text(std::int64_t epoch, std::int64_t epochs) {
  return fmt::format("epoch {}/{}", epoch, epochs);
}

std::string epoch_line(const EpochReport& r) {
  std::string line = epoch_text(r.epoch, r.epochs);
  const auto add = [&](const std::string& part) { line += "  " + part; };
  if (r.steps < r.steps_per_epoch) add(fmt::format("{} of {} steps", r.steps, r.steps_per_epoch));
  if (r.train_loss) add("train " + loss_text(*r.train_loss));
  if (r.validation_loss) add("val " + loss_text(*r.validation_loss));
  if (r.top1) add(fmt::format("top-1 {:.2f} %", *r.top1));
  if (r.averaged_top1) add(fmt::format("EMA {:.2f} %", *r.averaged_top1));
  if (r.train_loss) {
    add(fmt::format("lr {:.4g}", r.learning_rate));
    add(short_number(r.images_per_s) + " img/s");
  }
  add(duration_text(r.seconds));
  if (const std::string saved = save_text(r); !saved.empty()) add(saved);
  return line;
}

}  // namespace ddprun::trainer
