// The wait for the readers of the consoles at the job's end, and what is said when it is cut short.
#include "launcher/output/last_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace ddprun::launcher {
namespace {

bool is_of_keyboard(int signal) { return signal == SIGINT || signal == SIGQUIT; }

// Where stderr is the console that is stuck, a person at a keyboard may still read the terminal
// that the job was started from.
void tell_terminal(const std::string& line) {
  const int terminal = ::open("/dev/tty", O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (terminal < 0) return;
  write_all(terminal, "\n" + line + "\n");
  ::close(terminal);
}

}  // namespace

bool end_patience(const std::vector<int>& signals) {
  // One Ctrl-C may have been meant for the reader: a terminal sends it to the pager, too. SIGTERM
  // and SIGHUP come from a scheduler, or because nobody sits there any more.
  const auto keys = std::count_if(signals.begin(), signals.end(), is_of_keyboard);
  return keys > 1 || keys < static_cast<std::ptrdiff_t>(signals.size());
}

LastOutput::LastOutput(asio::io_context& io, OutputForwarder& output, LastOutputLimits limits)
    : output_(output), limits_(limits), notice_timer_(io), limit_timer_(io) {}

void LastOutput::signal_received(int signal) {
  const bool had_patience = !end_patience(signals_);
  signals_.push_back(signal);
  if (done_ && had_patience && end_patience(signals_)) bound();
}

void LastOutput::wait(std::string log_folder, std::function<void()> done,
                      std::function<void(std::size_t)> dropped) {
  dropped_ = std::move(dropped);
  log_folder_ = std::move(log_folder);
  done_ = std::move(done);
  notice_timer_.expires_after(limits_.notice_after);
  notice_timer_.async_wait([this](const asio::error_code& error) {
    if (!error) notice();
  });
  if (end_patience(signals_)) bound();
  output_.when_written([this] { finish(); });
}

void LastOutput::notice() {
  if (!done_ || !output_.stderr_is_free()) return;
  output_.write_line(
      fmt::format("[ddprun] the job is over; {} bytes of its output wait for whoever reads stdout "
                  "(SIGTERM, or Ctrl-C twice, drops them)",
                  output_.pending_bytes()));
}

void LastOutput::bound() {
  limit_timer_.expires_after(limits_.impatient);
  limit_timer_.async_wait([this](const asio::error_code& error) {
    if (!error) give_up();
  });
}

void LastOutput::give_up() {
  if (!done_) return;
  const std::size_t dropped = output_.drop_pending();
  if (dropped_) dropped_(dropped);
  const std::string line =
      fmt::format("[ddprun] dropped {} bytes of output that nobody read within {:g} s; {}", dropped,
                  std::chrono::duration<double>(limits_.impatient).count(),
                  log_folder_.empty() ? "no file holds them (--tee 3 --log-dir FOLDER keeps a copy)"
                                      : "the workers' part is in " + log_folder_);
  output_.write_line(line, LineKind::Warning);
  if (output_.pending_bytes() > 0) {
    output_.drop_pending();  // Or the forwarder's end would wait for the same reader again.
    tell_terminal(line);
  }
  finish();
}

void LastOutput::finish() {
  notice_timer_.cancel();
  limit_timer_.cancel();
  if (done_) std::exchange(done_, nullptr)();
}

}  // namespace ddprun::launcher
