// The wait for the readers of the consoles at the job's end, and what is said when it is cut short.
#include "launcher/output/last_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "command_line/write_all.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {
namespace {

// A console or file that is not stuck has a line by then.
constexpr std::chrono::milliseconds last_words{100};

bool is_of_keyboard(int signal) { return signal == SIGINT || signal == SIGQUIT; }

// Where stderr is the console that is stuck, a person at a keyboard may still read the terminal
// that the job was started from.
void tell_terminal(const std::string& line) {
  const rendezvous::UniqueFd terminal(
      ::open("/dev/tty", O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
  if (terminal) command_line::write_all(terminal.get(), "\n" + line + "\n");
}

std::string place_of_copy(const std::string& log_folder, std::size_t lacking) {
  if (lacking > 0) {
    return fmt::format("{} of them are missing in log files{}", lacking,
                       log_folder.empty() ? "" : " in " + log_folder);
  }
  if (log_folder.empty()) return "no file holds them (--tee 3 --log-dir FOLDER keeps a copy)";
  return "the workers' part is in " + log_folder;
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
  const OutputForwarder::Pending pending = output_.pending();
  output_.write_line(fmt::format(
      "[ddprun] the job is over; {} bytes of its output wait for {} "
      "(SIGTERM, or Ctrl-C twice, drops them)",
      pending.bytes(),
      pending.readers > 0 ? "whoever reads stdout" : "a file system that takes nothing"));
}

void LastOutput::bound() {
  limit_timer_.expires_after(limits_.impatient);
  limit_timer_.async_wait([this](const asio::error_code& error) {
    if (!error) give_up();
  });
}

void LastOutput::give_up() {
  if (!done_) return;
  const OutputForwarder::Pending pending = output_.pending();
  const std::size_t dropped = output_.drop_pending();
  if (dropped_) dropped_(dropped);
  const std::string line =
      fmt::format("[ddprun] dropped {} bytes of output that {} within {:g} s; {}", dropped,
                  pending.readers > 0 ? "nobody read" : "no file system took",
                  std::chrono::duration<double>(limits_.impatient).count(),
                  place_of_copy(log_folder_, pending.logs));
  output_.write_line(line, LineKind::Warning);
  if (!output_.flush(last_words)) {
    const OutputForwarder::Pending left = output_.pending();
    output_.drop_pending();  // Or the forwarder's end would wait for the same reader again.
    if (left.readers + left.files > 0) tell_terminal(line);
  }
  finish();
}

void LastOutput::finish() {
  notice_timer_.cancel();
  limit_timer_.cancel();
  if (done_) std::exchange(done_, nullptr)();
}

}  // namespace ddprun::launcher
