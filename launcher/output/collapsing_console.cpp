// The clock and the console of equal_lines.h: shows what is due, and wakes for what will be.
#include "launcher/output/collapsing_console.h"

#include <string>
#include <utility>

#include "launcher/output/color.h"

namespace ddprun::launcher {
namespace {

constexpr std::chrono::milliseconds window{100};
constexpr std::size_t waiting_bytes_max = 1 << 20;

}  // namespace

CollapsingConsole::CollapsingConsole(asio::io_context& io, OutputConsole& console,
                                     LinePrefix prefix)
    : console_(console),
      prefix_(std::move(prefix)),
      lines_(window, waiting_bytes_max),
      timer_(io) {}

void CollapsingConsole::use_prefix(const LinePrefix& prefix) {
  if (prefix == prefix_) return;
  show_all();
  prefix_ = prefix;
}

void CollapsingConsole::remove_writer(int local_rank) {
  lines_.remove_writer(local_rank);
  show_due();
}

void CollapsingConsole::add(int local_rank, std::string_view whole_lines) {
  const auto now = EqualLines::Clock::now();
  while (!whole_lines.empty()) {
    const std::size_t end = std::min(whole_lines.find('\n'), whole_lines.size() - 1) + 1;
    lines_.add(local_rank, whole_lines.substr(0, end), now);
    while (const auto line = lines_.take(now)) show(*line);
    whole_lines.remove_prefix(end);
  }
  show_due();
}

void CollapsingConsole::show_due() {
  const auto now = EqualLines::Clock::now();
  while (const auto line = lines_.take(now)) show(*line);
  console_.write_some();
  const auto deadline = lines_.deadline();
  // A timer that runs is left alone: lines wait in their order, so none is due before its time.
  if (!deadline || timer_runs_) return;
  timer_runs_ = true;
  timer_.expires_at(*deadline);
  timer_.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    const auto self = weak.lock();
    if (error || !self) return;
    self->timer_runs_ = false;
    self->show_due();
  });
}

void CollapsingConsole::show_of(int local_rank) {
  while (const auto line = lines_.take_of(local_rank)) show(*line);
}

void CollapsingConsole::show_all() {
  while (const auto line = lines_.take_any()) show(*line);
}

void CollapsingConsole::show(const EqualLines::Line& line) {
  const bool one = line.writers.size() == 1;
  const int color = console_.colors() && one ? rank_color(line.writers[0]) : -1;
  console_.add(this, colored(prefix_.of(line.writers), color), line.text);
}

}  // namespace ddprun::launcher
