// Handlers and their flags: only what POSIX allows in a signal handler (signal-safety(7)).
#include "trainer/stopping/stop_signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace ddprun::trainer {
namespace {

constexpr int stop_signals[] = {SIGUSR1, SIGHUP, SIGTERM, SIGINT, SIGALRM};
constexpr std::int64_t same_wish_ms = 1'000;

enum class Phase { Free, Voting, Agreed, Alone, Done };  // As the header has them.

std::atomic<Phase> phase{Phase::Free};
std::atomic<bool> telling{false};
std::atomic<bool> on_terminal{false};
std::atomic<int> waits_for_disk{0};  // That many DiskWaits live.
std::atomic<bool> waits_for_writer{false};
std::atomic<int> meeting_fd{-1};
std::atomic<int> steps_fd{-1};
std::atomic<bool> usr1_seen{false};
std::atomic<int> code_when_done{0};
std::atomic<std::int64_t> ending_since_ms{0};  // Of the first that asks for the end; 0: none came.
std::atomic<int> ending_signal{0};             // Which of them it was.
std::atomic<unsigned> patience_whole_s{10};    // Until a vote knows how long steps take.
constexpr unsigned meeting_patience_s = 2;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<std::int64_t>::is_always_lock_free &&
              std::atomic<Phase>::is_always_lock_free);

std::int64_t monotonic_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000 + now.tv_nsec / 1'000'000;
}

void say(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

// Of who has been told to end.
void begin_patience() {
  if (phase != Phase::Voting) return;
  ::alarm(meeting_fd >= 0 ? meeting_patience_s : patience_whole_s.load());
}

void end_by(int signal) {
  // A handler runs with its own signal blocked, and what is raised there would wait for its return.
  // Dying of the signal, and not of exit(), tells whoever started this what ended it.
  ::signal(signal, SIG_DFL);
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::raise(signal);
}

std::string_view answer_to(int signal) {
  switch (signal) {
    case SIGINT:
      return "train: Ctrl-C: stopping after a step that all workers agree on; another one ends at "
             "once\n";
    case SIGHUP:
      return "train: got SIGHUP: stopping after a step that all workers agree on\n";
    default:
      return "train: got SIGTERM: stopping after a step that all workers agree on\n";
  }
}

void on_ending_signal(int signal) {
  if (phase == Phase::Done) ::_exit(code_when_done);
  if (phase == Phase::Free) return end_by(signal);
  // Who read what this prints (`train | tee log`) was hung up, or has had its Ctrl-C, too.
  ::signal(SIGPIPE, SIG_IGN);
  const std::int64_t now = monotonic_ms();
  std::int64_t since = 0;  // Two threads may be in here at once: one of them is the first.
  if (!ending_since_ms.compare_exchange_strong(since, now)) {
    if (now - since >= same_wish_ms && signal != SIGHUP) end_by(signal);
    return;
  }
  ending_signal = signal;
  if (phase == Phase::Free) return end_by(signal);  // A let_go() in between has not heard of it.
  begin_patience();
  // What all have agreed on has been told: this one comes of it, as a launcher's that cleans up.
  if (telling && phase != Phase::Agreed) {
    // A terminal shows ^C behind the row that is there.
    if (on_terminal) say("\n");
    say(answer_to(signal));
  }
}

// Once. Whoever is interrupted has another patience to come to stand_alone().
bool interrupt(std::atomic<int>& what) {
  const int event_fd = what.exchange(-1);
  if (event_fd < 0) return false;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event_fd, &one, sizeof one);
  ::alarm(patience_whole_s);
  return true;
}

void on_alarm(int) {
  if (phase == Phase::Agreed || phase == Phase::Alone || phase == Phase::Done) return;
  if (waits_for_disk > 0) {
    say("train: told to stop, and still writing a checkpoint; another signal ends at once, without "
        "it\n");
  }
  if (waits_for_disk > 0 || waits_for_writer) {
    ::alarm(patience_whole_s);
    return;
  }
  if (interrupt(meeting_fd) || interrupt(steps_fd)) return;
  say("train: told to stop, but not all workers have come to a common step: ending without saving "
      "it\n");
  end_by(ending_signal);
}

void on_usr1(int) { usr1_seen = true; }

using Handler = void (*)(int);
Handler handler_of(int signal) {
  return signal == SIGUSR1 ? on_usr1 : signal == SIGALRM ? on_alarm : on_ending_signal;
}

}  // namespace

StopSignals::StopSignals() {
  phase = Phase::Free;
  telling = usr1_seen = waits_for_writer = false;
  meeting_fd = steps_fd = -1;
  ending_signal = 0;
  ending_since_ms = 0;
  on_terminal = ::isatty(STDERR_FILENO) == 1;
  for (const int signal : stop_signals) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_DFL) continue;
    struct sigaction action {};
    action.sa_handler = handler_of(signal);
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  ::alarm(0);
  if (phase == Phase::Done) return;
  for (const int signal : stop_signals) {
    struct sigaction now {};
    ::sigaction(signal, nullptr, &now);
    if (now.sa_handler == handler_of(signal)) ::signal(signal, SIG_DFL);
  }
}

void StopSignals::hold(bool tell) {
  telling = tell;
  if (phase == Phase::Voting || phase == Phase::Agreed) return;
  // Another attempt begins. A wish of before, which nobody came to, is one of its beginning.
  phase = Phase::Voting;
  if (ending_signal != 0) begin_patience();
}

void StopSignals::let_go() {
  const Phase before = phase.exchange(Phase::Free);
  meeting_fd = steps_fd = -1;
  waits_for_writer = false;  // It may be among those that are gone.
  if (before == Phase::Free || before == Phase::Agreed) return;
  // One that came a moment earlier ends it, too: its peers are gone, and with them the common step.
  if (ending_signal != 0) on_alarm(SIGALRM);
}

void StopSignals::stand_alone() {
  phase = Phase::Alone;
  telling = waits_for_writer = false;
  meeting_fd = steps_fd = -1;
  ::alarm(0);
}

void StopSignals::interrupt_meeting(int event_fd) {
  meeting_fd = event_fd;
  if (ending_signal != 0) begin_patience();
}

void StopSignals::interrupt_steps(int event_fd) { steps_fd = event_fd; }

void StopSignals::set_patience(double seconds) {
  constexpr double seconds_max = 3600;
  patience_whole_s = static_cast<unsigned>(std::ceil(std::clamp(seconds, 1.0, seconds_max)));
}

StopReason StopSignals::wish() const {
  switch (ending_signal.load()) {
    case SIGHUP:
      return StopReason::HungUp;
    case SIGTERM:
      return StopReason::Terminated;
    case SIGINT:
      return StopReason::Interrupted;
    default:
      return usr1_seen ? StopReason::Asked : StopReason::None;
  }
}

StopSignals::DiskWait::DiskWait() { ++waits_for_disk; }

StopSignals::DiskWait::~DiskWait() {
  if (--waits_for_disk > 0) return;
  if (ending_signal != 0) begin_patience();
}

void StopSignals::writer_may_wait() { waits_for_writer = true; }

void StopSignals::all_came() { waits_for_writer = false; }

void StopSignals::agreed() {
  Phase voting = Phase::Voting;
  if (phase.compare_exchange_strong(voting, Phase::Agreed)) ::alarm(0);
}

void StopSignals::done(int exit_code) {
  code_when_done = exit_code;
  phase = Phase::Done;
}

}  // namespace ddprun::trainer
