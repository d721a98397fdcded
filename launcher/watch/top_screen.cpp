// Signals are read from a descriptor and not handled: whatever ends this program while the terminal
// is ours comes by the same way as a key, and the terminal is given back before anything else.
#include "launcher/watch/top_screen.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command_line/write_all.h"
#include "launcher/watch/found_looks.h"
#include "launcher/watch/job_lines.h"
#include "launcher/watch/remote_job.h"
#include "launcher/watch/status_text.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds answer_limit{1'000};

// All of it; false when nobody reads any more.
bool write_out(const std::string& text) {
  return command_line::write_all(STDOUT_FILENO, text).error == 0;
}

// What the terminal is lent for: a second screen without a cursor, and keys that come at once.
class LentTerminal {
 public:
  LentTerminal() : has_keys_(::tcgetattr(STDIN_FILENO, &before_) == 0) { take(); }
  ~LentTerminal() { give_back(); }
  LentTerminal(const LentTerminal&) = delete;

  bool has_keys() const { return has_keys_; }
  void lost_keys() { has_keys_ = false; }

  void take() {
    if (has_keys_) {
      termios raw = before_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      raw.c_cc[VMIN] = 0;
      raw.c_cc[VTIME] = 0;
      ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    }
    write_out("\033[?1049h\033[?25l");
    taken_ = true;
  }

  void give_back() {
    if (!taken_) return;
    taken_ = false;
    write_out("\033[?25h\033[?1049l");
    if (has_keys_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  }

 private:
  termios before_{};
  bool has_keys_;
  bool taken_ = false;
};

// The signals that concern a program on a terminal, read instead of handled.
class WatchedSignals {
 public:
  WatchedSignals() {
    sigset_t set;
    ::sigemptyset(&set);
    for (const int signal : {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGTSTP, SIGWINCH}) {
      ::sigaddset(&set, signal);
    }
    ::sigprocmask(SIG_BLOCK, &set, &before_);
    fd_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~WatchedSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  WatchedSignals(const WatchedSignals&) = delete;

  int fd() const { return fd_.get(); }
  int next() const {  // 0: none.
    signalfd_siginfo info{};
    const bool read = ::read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info);
    return read ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t before_{};
  rendezvous::UniqueFd fd_;
};

struct Size {
  std::size_t rows = 24;
  std::size_t columns = 80;
};

Size terminal_size() {
  winsize window{};
  Size size;
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_row > 0 && window.ws_col > 0) {
    size = {window.ws_row, window.ws_col};
  }
  return size;
}

class Top {
 public:
  explicit Top(const WatchCommand& command) : command_(command), looks_(command) {}

  // False: there is no such job (any more); what was seen last stays.
  bool look();
  int on_terminal();
  int plain();

 private:
  void draw();
  void read_keys(LentTerminal& terminal);
  void key(const std::string& bytes);
  void take_stacks();
  void on_signal(int signal, LentTerminal& terminal);
  // Waits for a key, a signal or the time of the next look; true: it is time to look.
  bool wait(LentTerminal& terminal, const WatchedSignals& signals, milliseconds limit);

  WatchCommand command_;
  FoundLooks looks_;
  std::vector<std::string> lines_;
  std::vector<std::string> stacks_;  // Shown instead, while there are any.
  std::size_t scroll_ = 0;
  bool ended_ = false;
  bool quits_ = false;
  int ended_by_ = 0;  // A signal.
};

bool Top::look() {
  looks_.look(answer_limit);
  ended_ = !looks_.found();
  if (ended_) return false;
  lines_ = jobs_lines(looks_.looks(), zone_seconds());
  lines_.insert(lines_.begin(), looks_.notes().begin(), looks_.notes().end());
  return true;
}

int Top::plain() {
  do {
    std::string text;
    for (const std::string& line : lines_) text += line + "\n";
    if (!write_out(text + "\n")) return 0;
    ::poll(nullptr, 0, static_cast<int>(command_.interval.count()));
  } while (look());
  return 0;
}

void Top::draw() {
  const Size size = terminal_size();
  const std::string keys = !stacks_.empty() ? "any key: back"
                           : ended_ ? "q quit  the job has ended: this is how it was seen last"
                                    : "q quit  s stacks";
  const auto screen =
      screen_of(stacks_.empty() ? lines_ : stacks_, keys, size.rows, size.columns, scroll_);
  std::string text = "\033[H";
  for (std::size_t i = 0; i < screen.size(); ++i) {
    const bool last = i + 1 == screen.size();
    text += (last ? "\033[7m" : "") + screen[i] + "\033[0m\033[K" + (last ? "" : "\r\n");
  }
  if (!write_out(text + "\033[J")) quits_ = true;
}

// Of another host's job there may be no answer just now, which is no reason to end.
void Top::take_stacks() {
  try {
    for (const FoundJob& job : looks_.jobs()) {
      for (std::string& line : job_stack_lines(looks_, job, std::nullopt)) {
        stacks_.push_back(std::move(line));
      }
    }
  } catch (const RemoteJobError& error) {
    if (error.status() != 1) throw;
    stacks_.push_back(error.what());
  }
}

void Top::key(const std::string& bytes) {
  if (bytes == "\033[A" || bytes == "\033OA" || bytes == "k") {
    if (scroll_ > 0) --scroll_;
  } else if (bytes == "\033[B" || bytes == "\033OB" || bytes == "j") {
    ++scroll_;
  } else if (bytes == "\033[5~") {
    scroll_ -= std::min(scroll_, terminal_size().rows / 2);
  } else if (bytes == "\033[6~" || bytes == " ") {
    scroll_ += terminal_size().rows / 2;
  } else if (!stacks_.empty()) {
    stacks_.clear();
    scroll_ = 0;
  } else if (bytes == "q" || bytes == "Q") {
    quits_ = true;
  } else if (bytes == "s") {
    take_stacks();
    scroll_ = 0;
  }
}

// Keys that were typed together, or pasted, come together; an arrow is three bytes.
void Top::read_keys(LentTerminal& terminal) {
  char bytes[64];
  const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
  if (count <= 0) return terminal.lost_keys();
  const std::string typed(bytes, static_cast<std::size_t>(count));
  for (std::size_t at = 0; at < typed.size() && !quits_;) {
    std::size_t length = 1;
    if (typed[at] == '\033' && at + 1 < typed.size()) {
      length = 3;
      if (at + 3 < typed.size() && typed[at + 3] == '~') length = 4;
    }
    key(typed.substr(at, length));
    at += length;
  }
}

void Top::on_signal(int signal, LentTerminal& terminal) {
  if (signal == SIGWINCH) return;
  if (signal != SIGTSTP) {
    quits_ = true;
    ended_by_ = signal;
    return;
  }
  terminal.give_back();
  ::kill(0, SIGSTOP);  // As the key would have stopped the whole group.
  terminal.take();
}

bool Top::wait(LentTerminal& terminal, const WatchedSignals& signals, milliseconds limit) {
  pollfd waited[] = {{signals.fd(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
  const int ready = ::poll(waited, terminal.has_keys() ? 2 : 1, static_cast<int>(limit.count()));
  if (ready <= 0) return ready == 0;
  while (const int signal = signals.next()) on_signal(signal, terminal);
  if (terminal.has_keys() && waited[1].revents != 0) read_keys(terminal);
  return false;
}

int Top::on_terminal() {
  const WatchedSignals signals;
  LentTerminal terminal;
  auto next = steady_clock::now() + command_.interval;
  while (!quits_) {
    draw();
    const auto left = std::chrono::ceil<milliseconds>(next - steady_clock::now());
    if (!wait(terminal, signals, std::max(left, milliseconds{0}))) continue;
    look();
    next = steady_clock::now() + command_.interval;
  }
  return ended_by_ == 0 || ended_by_ == SIGINT ? 0 : 128 + ended_by_;
}

bool can_draw() {
  const char* const kind = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) != 0 && kind != nullptr && std::string(kind) != "dumb" &&
         *kind != '\0';
}

}  // namespace

int run_top(const WatchCommand& command) {
  Top top(command);
  if (!top.look()) return 1;
  return can_draw() ? top.on_terminal() : top.plain();
}

}  // namespace ddprun::launcher
