// Real signals to a process that has something to keep, and to one that has not.
#include "trainer/stopping/stop_signals.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <initializer_list>
#include <string_view>

#include "tests/testing/catch.h"

using namespace ddprun::trainer;

namespace {

constexpr int survived = 7;  // Of a child that no signal has ended.

// How a child that does `body` ended: its exit code, or 128 + the signal's number.
template <typename Body>
int end_of_child(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int signal : {SIGTERM, SIGINT, SIGHUP})
      ::signal(signal, SIG_DFL);  // Catch2 takes them.
    body();
    ::_exit(survived);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void wait_ms(int limit) { ::poll(nullptr, 0, limit); }  // A signal ends it.

}  // namespace

TEST_CASE("a signal ends a process that has nothing to keep", "[trainer][stop]") {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    const int end = end_of_child([&] {
      const StopSignals signals;
      ::raise(signal);
    });
    CHECK(end == 128 + signal);
  }
}

TEST_CASE("a signal is a wish once there is something to keep", "[trainer][stop]") {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    const int end = end_of_child([&] {
      StopSignals signals;
      signals.hold(/*tell=*/false);
      if (signals.wish() != StopReason::None) ::_exit(1);
      ::raise(signal);
      ::raise(signal);  // Told twice at once, as by a scheduler and by a launcher.
      const auto expected = signal == SIGTERM  ? StopReason::Terminated
                            : signal == SIGINT ? StopReason::Interrupted
                                               : StopReason::HungUp;
      if (signals.wish() != expected) ::_exit(2);
    });
    CHECK(end == survived);
  }
}

TEST_CASE("17.1: on a terminal the answer to Ctrl-C begins a line of its own", "[trainer][stop]") {
  int terminal = -1, other_end = -1;
  REQUIRE(::openpty(&terminal, &other_end, nullptr, nullptr, nullptr) == 0);
  const int end = end_of_child([&] {
    ::dup2(other_end, STDERR_FILENO);
    StopSignals signals;
    signals.hold(/*tell=*/true);
    ::raise(SIGINT);
  });
  CHECK(end == survived);

  char shown[256];
  const ssize_t size = ::read(terminal, shown, sizeof(shown));
  REQUIRE(size > 0);
  CHECK(std::string_view(shown, static_cast<std::size_t>(size)).starts_with("\r\ntrain: Ctrl-C: "));
  ::close(other_end);
  ::close(terminal);
}

TEST_CASE("a signal that comes after all have agreed to stop is not answered", "[trainer][stop]") {
  for (const bool agreed : {false, true}) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const int end = end_of_child([&] {
      ::dup2(ends[1], STDERR_FILENO);
      StopSignals signals;
      signals.hold(/*tell=*/true);
      ::raise(SIGUSR1);
      if (agreed) signals.agreed();
      ::raise(SIGTERM);  // As by a launcher whose other workers have ended.
    });
    ::close(ends[1]);
    CHECK(end == survived);
    char shown[256];
    CHECK((::read(ends[0], shown, sizeof(shown)) > 0) == !agreed);
    ::close(ends[0]);
  }
}

TEST_CASE("SIGUSR1 is a wish from the start, which SIGTERM outranks", "[trainer][stop]") {
  const int end = end_of_child([] {
    StopSignals signals;
    ::raise(SIGUSR1);
    ::raise(SIGUSR1);
    if (signals.wish() != StopReason::Asked) ::_exit(1);
    signals.hold(/*tell=*/false);
    ::raise(SIGTERM);
    if (signals.wish() != StopReason::Terminated) ::_exit(2);
  });
  CHECK(end == survived);
}

TEST_CASE("a second signal ends the process at once, while it saves too", "[trainer][stop]") {
  const int end = end_of_child([] {
    StopSignals signals;
    signals.hold(/*tell=*/false);
    ::raise(SIGTERM);
    signals.agreed();
    for (int i = 0; i < 1000; ++i) {  // Impatience, from well before to after it counts.
      wait_ms(100);
      ::raise(SIGTERM);
    }
  });
  CHECK(end == 128 + SIGTERM);
}

TEST_CASE("a signal after all is done ends a process as it would have ended", "[trainer][stop]") {
  for (const int status : {0, 75}) {
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
      const int end = end_of_child([&] {
        {
          StopSignals signals;
          signals.hold(/*tell=*/false);
          signals.agreed();
          signals.done(status);
        }
        ::raise(SIGUSR1);  // Asks for nothing any more.
        ::raise(SIGALRM);
        ::raise(signal);
      });
      CHECK(end == status);
    }
  }
}

TEST_CASE("a wish that no other rank hears does not hang", "[trainer][stop]") {
  const int end = end_of_child([] {
    StopSignals signals;
    signals.set_patience(1);
    signals.hold(/*tell=*/false);
    ::raise(SIGINT);
    wait_ms(60'000);  // As in a collective that nobody comes to.
  });
  CHECK(end == 128 + SIGINT);
}

TEST_CASE("patience does not run out while a process waits for its own disk", "[trainer][stop]") {
  const auto end_of = [](bool waits) {
    return end_of_child([waits] {
      StopSignals signals;
      signals.set_patience(3600);
      signals.hold(/*tell=*/false);
      ::raise(SIGTERM);
      {
        const StopSignals::DiskWait wait;
        ::raise(SIGALRM);
      }
      if (!waits) ::raise(SIGALRM);
    });
  };
  CHECK(end_of(true) == survived);
  CHECK(end_of(false) == 128 + SIGTERM);
}

TEST_CASE("patience does not run out while another rank may wait for its disk", "[trainer][stop]") {
  const auto end_of = [](bool met) {
    return end_of_child([met] {
      StopSignals signals;
      signals.set_patience(3600);
      signals.hold(/*tell=*/false);
      StopSignals::writer_may_wait();
      ::raise(SIGTERM);
      if (met) signals.all_came();
      ::raise(SIGALRM);
    });
  };
  CHECK(end_of(/*met=*/false) == survived);
  CHECK(end_of(/*met=*/true) == 128 + SIGTERM);
}

TEST_CASE("16.3: a wish ends a process at once whose peers are gone, unless they have agreed",
          "[trainer][stop]") {
  for (const bool before : {true, false}) {
    const int end = end_of_child([&] {
      StopSignals signals;
      signals.set_patience(3600);
      signals.hold(/*tell=*/false);
      StopSignals::writer_may_wait();
      if (before) ::raise(SIGTERM);
      signals.let_go();
      if (!before) ::raise(SIGTERM);
    });
    CHECK(end == 128 + SIGTERM);
  }
  const int end = end_of_child([] {
    StopSignals signals;
    signals.hold(/*tell=*/false);
    ::raise(SIGTERM);
    signals.agreed();
    signals.let_go();
  });
  CHECK(end == survived);
}

TEST_CASE("16.3: who waits for others and has something to keep sees to its wish alone",
          "[trainer][stop]") {
  for (const bool before : {true, false}) {
    const int end = end_of_child([&] {
      StopSignals signals;
      signals.set_patience(3600);
      signals.hold(/*tell=*/false);
      ::raise(SIGUSR1);
      if (before) ::raise(SIGTERM);
      signals.stand_alone();
      if (signals.is_told_to_end() != before) ::_exit(1);
      if (!before) ::raise(SIGTERM);
      if (!signals.is_told_to_end() || ::alarm(0) != 0) ::_exit(2);  // And no patience runs out.
    });
    CHECK(end == survived);
  }
  for (const bool before : {true, false}) {  // With others once more.
    const int end = end_of_child([&] {
      StopSignals signals;
      signals.set_patience(3600);
      signals.hold(/*tell=*/false);
      signals.agreed();  // In the attempt that is over.
      signals.stand_alone();
      if (before) ::raise(SIGTERM);
      signals.hold(/*tell=*/false);
      if (!before) ::raise(SIGTERM);
      if (::alarm(0) < 3000) ::_exit(1);
    });
    CHECK(end == survived);
  }
}

TEST_CASE("16.3: only the meeting of peers is short of patience", "[trainer][stop]") {
  const int end = end_of_child([] {
    const int interrupted = ::eventfd(0, EFD_NONBLOCK);
    StopSignals signals;
    signals.set_patience(3600);
    signals.hold(/*tell=*/false);
    signals.interrupt_meeting(interrupted);
    ::raise(SIGTERM);
    if (::alarm(1) > 10) ::_exit(1);
    signals.interrupt_meeting(-1);  // They have come.
    if (::alarm(0) < 3000) ::_exit(2);
  });
  CHECK(end == survived);
}

TEST_CASE("16.3: a wish that no peer comes to hear interrupts what this one waits in first",
          "[trainer][stop]") {
  // The meeting of the peers, and a step where one of them hangs.
  for (const auto waits_in : {&StopSignals::interrupt_meeting, &StopSignals::interrupt_steps}) {
    for (const bool leaves : {true, false}) {
      const int end = end_of_child([&] {
        const int interrupted = ::eventfd(0, EFD_NONBLOCK);
        StopSignals signals;
        signals.hold(/*tell=*/false);
        (signals.*waits_in)(interrupted);
        ::raise(SIGTERM);
        eventfd_t count = 0;
        if (::eventfd_read(interrupted, &count) == 0) ::_exit(1);
        ::raise(SIGALRM);
        if (::eventfd_read(interrupted, &count) != 0) ::_exit(2);
        if (leaves) signals.stand_alone();
        if (::alarm(0) != 0) ::raise(SIGALRM);
      });
      CHECK(end == (leaves ? survived : 128 + SIGTERM));
    }
  }
}

TEST_CASE("a process that stands alone from its start sees to its wish by itself",
          "[trainer][stop]") {
  const int end = end_of_child([] {
    StopSignals signals;
    signals.stand_alone();
    signals.agreed();  // Of an attempt that is over.
    ::raise(SIGTERM);
    ::raise(SIGALRM);
    if (!signals.is_told_to_end() || ::alarm(0) != 0) ::_exit(1);
  });
  CHECK(end == survived);
}

TEST_CASE("a wish that is seen to alone ends a process that then has nothing to keep",
          "[trainer][stop]") {
  for (const bool before : {true, false}) {
    const int end = end_of_child([&] {
      StopSignals signals;
      signals.stand_alone();
      if (before) ::raise(SIGTERM);
      signals.let_go();
      if (!before) ::raise(SIGTERM);
    });
    CHECK(end == 128 + SIGTERM);
  }
}

TEST_CASE("what is said twice, or where it does not count, changes nothing", "[trainer][stop]") {
  const int agreed = end_of_child([] {
    StopSignals signals;
    signals.hold(/*tell=*/false);
    ::raise(SIGTERM);
    signals.agreed();
    signals.hold(/*tell=*/false);  // As at each beat.
    ::raise(SIGALRM);
    signals.let_go();
    signals.let_go();
  });
  CHECK(agreed == survived);
  const int voting = end_of_child([] {
    StopSignals signals;
    signals.set_patience(3600);
    signals.hold(/*tell=*/false);
    ::raise(SIGTERM);
    ::alarm(0);
    signals.hold(/*tell=*/false);
    if (::alarm(0) != 0) ::_exit(1);  // The patience does not begin anew.
  });
  CHECK(voting == survived);
  const int free = end_of_child([] {
    StopSignals signals;
    signals.agreed();  // All steps were done before this process came.
    ::raise(SIGTERM);
  });
  CHECK(free == 128 + SIGTERM);
}

TEST_CASE("a wish that all had agreed on has a patience of its own in the next attempt",
          "[trainer][stop]") {
  const int end = end_of_child([] {
    StopSignals signals;
    signals.set_patience(3600);
    signals.hold(/*tell=*/false);
    ::raise(SIGTERM);
    signals.agreed();
    signals.let_go();
    if (::alarm(0) != 0) ::_exit(1);
    signals.hold(/*tell=*/false);
    if (::alarm(0) < 3000) ::_exit(2);
    ::raise(SIGALRM);
  });
  CHECK(end == 128 + SIGTERM);
}

TEST_CASE("a wish waits for the disk also where its peers are gone", "[trainer][stop]") {
  const int end = end_of_child([] {
    StopSignals signals;
    signals.set_patience(3600);
    signals.hold(/*tell=*/false);
    ::raise(SIGTERM);
    {
      const StopSignals::DiskWait wait;
      signals.let_go();
      if (::alarm(3600) < 3000) ::_exit(1);
    }
    if (::alarm(0) < 3000) ::_exit(2);
    ::raise(SIGALRM);
  });
  CHECK(end == 128 + SIGTERM);
}

TEST_CASE("what all have agreed on is waited for", "[trainer][stop]") {
  const int end = end_of_child([] {
    StopSignals signals;
    signals.set_patience(1);
    signals.hold(/*tell=*/false);
    ::raise(SIGTERM);
    signals.agreed();
    ::raise(SIGALRM);
  });
  CHECK(end == survived);
}

TEST_CASE("a process that ignores a signal goes on to do so", "[trainer][stop]") {
  for (const int signal : {SIGTERM, SIGHUP}) {  // As nohup starts it.
    const int end = end_of_child([&] {
      ::signal(signal, SIG_IGN);
      StopSignals signals;
      signals.hold(/*tell=*/false);
      ::raise(signal);
      if (signals.wish() != StopReason::None) ::_exit(1);
    });
    CHECK(end == survived);
  }
}

TEST_CASE("a lost terminal that is told of twice ends nobody, and a signal after it does",
          "[trainer][stop]") {
  const auto end_of = [](int second) {
    return end_of_child([&] {
      StopSignals signals;
      signals.set_patience(3600);
      signals.hold(/*tell=*/false);
      ::raise(SIGHUP);
      const auto heard = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - heard < std::chrono::milliseconds(1100))
        wait_ms(100);
      ::raise(second);
      if (!signals.is_told_to_end()) ::_exit(1);
    });
  };
  CHECK(end_of(SIGHUP) == survived);
  CHECK(end_of(SIGTERM) == 128 + SIGTERM);
}

TEST_CASE("who is told to end does not die of a reader that has ended before", "[trainer][stop]") {
  const auto end_of = [](std::initializer_list<int> raised) {
    return end_of_child([&] {
      int ends[2];
      if (::pipe(ends) != 0) ::_exit(1);
      ::close(ends[0]);
      StopSignals signals;
      signals.hold(/*tell=*/false);
      for (const int signal : raised) ::raise(signal);
      if (::write(ends[1], "x", 1) != -1) ::_exit(2);
    });
  };
  CHECK(end_of({SIGHUP}) == survived);
  CHECK(end_of({SIGINT}) == survived);  // Of a terminal: `tee` had it, too.
  CHECK(end_of({SIGTERM, SIGHUP}) == survived);
  CHECK(end_of({}) == 128 + SIGPIPE);
}
