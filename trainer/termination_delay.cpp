// Two atomics and no lock: the handler may interrupt any line here, in any thread.
#include "trainer/termination_delay.h"

#include <signal.h>

#include <atomic>

namespace ddprun::trainer {
namespace {

constexpr int delayed_signals[] = {SIGTERM, SIGINT};

// Whoever sees both set ends the process: either the handler, or end(), which clears `busy` first.
std::atomic<bool> busy{false};
std::atomic<int> signal_seen{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

// Safe in a signal handler.
void die_of(int signal) {
  ::signal(signal, SIG_DFL);
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::raise(signal);
}

void on_signal(int signal) {
  signal_seen = signal;
  if (!busy) die_of(signal);
  for (const int other : delayed_signals) ::signal(other, SIG_DFL);  // The second one ends at once.
}

}  // namespace

TerminationDelay::TerminationDelay() {
  for (const int signal : delayed_signals) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    // Who ignores a signal, as nohup does, or handles it already, has decided otherwise.
    if (before.sa_handler != SIG_DFL) continue;
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, nullptr);
  }
}

TerminationDelay::~TerminationDelay() {
  end();
  for (const int signal : delayed_signals) {
    struct sigaction now {};
    ::sigaction(signal, nullptr, &now);
    if (now.sa_handler == on_signal) ::signal(signal, SIG_DFL);
  }
}

void TerminationDelay::begin() { busy = true; }

void TerminationDelay::end() {
  busy = false;
  if (const int signal = signal_seen; signal != 0) die_of(signal);
}

}  // namespace ddprun::trainer
