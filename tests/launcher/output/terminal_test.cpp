// Terminals on either side: a console that is one, and workers that write to one.
#include <fcntl.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <asio/post.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "launcher/output/forwarder.h"
#include "launcher/output/prefix.h"
#include "launcher/output/pty.h"
#include "rendezvous/unique_fd.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"

using namespace ddprun::launcher;
using ddprun::rendezvous::UniqueFd;
using namespace std::chrono_literals;

namespace {

void type(int fd, const std::string& text) {
  REQUIRE(::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

// What can be read now.
std::string got(int fd) {
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  std::string text;
  char buffer[65536];
  for (ssize_t n; (n = ::read(fd, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(n));
  }
  return text;
}

// A forwarder whose console is a terminal that this test looks at.
struct Screen {
  Screen() : terminal(open_pty()) {
    set_terminal_size(terminal.our_end.get(), {100, 30});
    output =
        std::make_unique<OutputForwarder>(io, terminal.worker_end.get(), terminal.worker_end.get());
  }
  ~Screen() { output.reset(); }

  void poll() {
    io.restart();
    io.poll();
  }
  std::string shown() {
    poll();
    return got(terminal.our_end.get());
  }
  // Whatever comes next, also after a timer.
  std::string next_shown() {
    std::string text;
    for (int i = 0; i < 1000 && text.empty(); ++i) {  // Each round waits for an event.
      io.restart();
      io.run_one_for(10s);
      text = got(terminal.our_end.get());
    }
    return text;
  }
  // A worker with a pipe as stdout; returns the end to write to.
  int add(int local_rank, const std::string& prefix, bool collapse = false) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    WorkerOutput worker;
    worker.prefix = prefix;
    worker.local_rank = local_rank;
    worker.collapse = collapse;
    worker.collapsed_prefix = {"[${local_rank}]:", "", 0};
    workers.push_back(output->add(worker, UniqueFd(ends[0]), {}));
    return ends[1];
  }

  asio::io_context io;
  Pty terminal;
  std::unique_ptr<OutputForwarder> output;
  std::vector<std::shared_ptr<OutputForwarder::Stream>> workers;
};

// The terminal of a worker with this prefix.
struct WorkerTerminal {
  WorkerTerminal(Screen& screen, const std::string& prefix) {
    WorkerOutput worker;
    worker.pty = true;
    worker.prefix = prefix;
    stream = screen.output->add(worker, std::move(pty.our_end), {});
  }
  WorkerTerminal(const WorkerTerminal&) = delete;
  WorkerTerminal& operator=(const WorkerTerminal&) = delete;

  TerminalSize size() const {
    TerminalSize size;
    REQUIRE(read_terminal_size(pty.worker_end.get(), size));
    return size;
  }

  Pty pty = open_pty();
  std::shared_ptr<OutputForwarder::Stream> stream;
};

}  // namespace

TEST_CASE("on a terminal a line stands above the progress bar, which stays", "[output][terminal]") {
  Screen screen;
  const int bar = screen.add(0, "[0]:"), other = screen.add(1, "[1]:");
  type(bar, "\r 10%");
  CHECK(screen.shown() == "\r[0]: 10%");
  type(other, "hello\n");
  CHECK(screen.shown() == "\r\033[K[1]:hello\n[0]: 10%");
  screen.output->write_line("[ddprun] note");
  CHECK(screen.shown() == "\r\033[K[ddprun] note\n[0]: 10%");
  type(bar, "\r 20%");
  CHECK(screen.shown() == "\r[0]: 20%");
  type(bar, "\n");
  type(other, "end\n");
  const std::string end = screen.shown();
  CHECK((end == "\n[1]:end\n" || end == "\r\033[K[1]:end\n[0]: 20%\n"));
  ::close(bar);
  ::close(other);
}

TEST_CASE("17.1: of a progress bar that its worker wipes no prefix is left", "[output][terminal]") {
  Screen screen;
  const int bar = screen.add(0, "[0]:"), other = screen.add(1, "[1]:");
  type(bar, "\r 10%");
  screen.shown();
  type(bar, "\r\033[K");
  CHECK(screen.shown() == "\r[0]:\033[K\r\033[K");
  type(other, "hello\n");
  CHECK(screen.shown() == "[1]:hello\n");
  type(bar, "\r 20%");  // It may draw again ...
  CHECK(screen.shown() == "\r[0]: 20%");
  type(bar, "\r\033[Knext\n");  // ... and write in place of it.
  CHECK(screen.shown() == "\r[0]:\033[Knext\n");
  type(bar, "\r\033[K");
  screen.shown();
  type(bar, "last\n");
  CHECK(screen.shown() == "[0]:last\n");
  ::close(bar);
  ::close(other);
}

TEST_CASE("of two progress bars only that of the lowest rank moves", "[output][terminal]") {
  Screen screen;
  const int zero = screen.add(0, "[0]:"), one = screen.add(1, "[1]:");
  type(one, "\r 1a");
  CHECK(screen.shown() == "\r[1]: 1a");  // Nobody else draws.
  type(zero, "\r 0a");
  CHECK(screen.shown() == "\n\r[0]: 0a");
  type(one, "\r 1b\r 1c");
  type(one, "\r 1d");
  CHECK(screen.shown().empty());
  type(zero, "\r 0b");
  CHECK(screen.shown() == "\r[0]: 0b");
  type(one, " done\n");
  CHECK(screen.shown() == "\r\033[K\r[1]: 1d done\n[0]: 0b");
  type(zero, "\n");
  CHECK(screen.shown() == "\n");
  type(one, "\r 2a");
  CHECK(screen.shown() == "\r[1]: 2a");
  ::close(zero);
  ::close(one);
}

TEST_CASE("prefixes and warnings have colors when they are chosen", "[output][terminal]") {
  Screen screen;
  screen.output->choose_colors(ColorWhen::Auto, std::nullopt, "xterm");
  const int one = screen.add(1, "[1]:");
  type(one, "x\n");
  CHECK(screen.shown() == colored("[1]:", rank_color(1)) + "x\n");
  screen.output->write_line("[ddprun] w", LineKind::Warning);
  CHECK(screen.shown() == colored("[ddprun] w", line_color(LineKind::Warning)) + "\n");
  screen.output->choose_colors(ColorWhen::Auto, "1", "xterm");
  screen.output->write_line("[ddprun] w", LineKind::Error);
  CHECK(screen.shown() == "[ddprun] w\n");
  ::close(one);
}

TEST_CASE("equal lines of two workers are shown once, and a bar as it moves",
          "[output][terminal]") {
  Screen screen;
  const int zero = screen.add(0, "[0]:", true), one = screen.add(1, "[1]:", true);
  type(zero, "same\nsame\n");
  CHECK(screen.shown().empty());
  type(one, "same\nsame\n");
  CHECK(screen.shown() == "[0-1]:same\n[0-1]:same\n");
  type(zero, "alone\n");
  screen.poll();
  type(zero, "\r 5%");  // After what waits.
  CHECK(screen.shown() == "[0]:alone\n\r[0]: 5%");
  type(zero, "\nboth");
  CHECK(screen.shown() == "\n");
  type(one, "both\n");
  screen.poll();
  ::close(zero);
  CHECK(screen.shown() == "[0-1]:both\n");
  type(one, "last");
  ::close(one);
  CHECK(screen.shown() == "[1]:last\n");
}

TEST_CASE("a line that nobody else writes comes after the window by itself", "[output][terminal]") {
  Screen screen;
  const int zero = screen.add(0, "[0]:", true), one = screen.add(1, "[1]:", true);
  type(zero, "alone\n");
  CHECK(screen.next_shown() == "[0]:alone\n");
  ::close(zero);
  ::close(one);
}

TEST_CASE("a prompt is shown on a terminal before its line ends", "[output][terminal]") {
  Screen screen;
  const int zero = screen.add(0, "[0]:"), one = screen.add(1, "[1]:");
  type(zero, "name? ");
  CHECK(screen.shown().empty());  // The rest of the line may be on its way.
  CHECK(screen.next_shown() == "[0]:name? ");
  type(zero, "hello bob\n");
  CHECK(screen.shown() == "hello bob\n");
  type(zero, "(Pdb) ");
  CHECK(screen.next_shown() == "[0]:(Pdb) ");
  type(one, "(Pdb) ");  // Another's begins a row of its own.
  CHECK(screen.next_shown() == "\n[1]:(Pdb) ");
  type(zero, "41\n");
  CHECK(screen.shown() == "\n[0]:41\n");
  ::close(zero);
  ::close(one);
}

TEST_CASE("a prompt takes the row of a progress bar, which is drawn below", "[output][terminal]") {
  Screen screen;
  const int bar = screen.add(0, "[0]:"), asks = screen.add(1, "[1]:");
  type(bar, "\r 10%");
  CHECK(screen.shown() == "\r[0]: 10%");
  type(asks, "name? ");
  CHECK(screen.next_shown() == "\r\033[K[1]:name? ");
  type(bar, "\r 20%");
  CHECK(screen.shown() == "\n\r[0]: 20%");
  type(asks, "hello\n");
  CHECK(screen.shown() == "\r\033[K[1]:hello\n[0]: 20%");
  ::close(bar);
  ::close(asks);
}

TEST_CASE("equal lines that come in two parts are collapsed, prompts or not",
          "[output][terminal]") {
  Screen screen;
  const int zero = screen.add(0, "[0]:", true), one = screen.add(1, "[1]:", true);
  const int asks = screen.add(2, "[2]:");
  type(zero, "loading ... ");
  type(one, "loading ... ");
  CHECK(screen.shown().empty());
  type(asks, "name? ");  // Shown after what came before it, if that were.
  CHECK(screen.next_shown() == "[2]:name? ");
  type(zero, "done\n");
  type(one, "done\n");
  CHECK(screen.next_shown() == "\n[0-1]:loading ... done\n");
  for (const int fd : {zero, one, asks}) ::close(fd);
}

TEST_CASE("a worker's terminal changes no byte and ends without losing one", "[output][terminal]") {
  std::string sent;
  for (int i = 0; i < 256; ++i) sent += static_cast<char>(i);
  for (int i = 0; i < 3'000; ++i) sent += "line " + std::to_string(i) + "\n";
  Screen screen;
  Pty pty = open_pty();
  WorkerOutput worker;
  worker.pty = true;
  const auto stream = screen.output->add(worker, std::move(pty.our_end), {});
  CHECK(::isatty(pty.worker_end.get()) == 1);
  CHECK(::tcgetsid(pty.worker_end.get()) == -1);  // Nobody's controlling terminal.
  // From a thread: a terminal holds little, and its writer waits.
  std::thread writer([&] {
    for (std::size_t at = 0; at < sent.size();) {
      const ssize_t count = ::write(pty.worker_end.get(), sent.data() + at, sent.size() - at);
      if (count > 0) at += static_cast<std::size_t>(count);
    }
    pty.worker_end.reset();  // With bytes on their way.
  });
  std::string text;
  const auto limit = std::chrono::steady_clock::now() + ddprun::testing::patience(20s);
  while (text.size() + 4'000 < sent.size() && std::chrono::steady_clock::now() < limit) {
    text += screen.shown();
  }
  writer.join();
  screen.output->drain(*stream);
  text += screen.shown();
  CHECK(text == sent);
}

TEST_CASE("a prefix is as wide as it looks, whatever its bytes", "[output][terminal]") {
  CHECK(columns_of("") == 0);
  CHECK(columns_of("[default0]:") == 11);
  CHECK(columns_of("[\xc3\xa9t\xc3\xa9]:") == 6);      // An accent is two bytes.
  CHECK(columns_of("[e\xcc\x81]:") == 4);              // Or a character of no width.
  CHECK(columns_of("\xe8\xae\xad\xe7\xbb\x83") == 4);  // Wide ones.
  CHECK(columns_of("\xff\xc3") == 2);                  // No UTF-8.

  Screen screen;
  const WorkerTerminal worker(screen, "[\xc3\xa9]:");
  CHECK(worker.size().columns == 96);
}

TEST_CASE("a worker's terminal is as wide as the prefix leaves, and follows the launcher's",
          "[output][terminal]") {
  Screen screen;
  const WorkerTerminal worker(screen, "[0]:");
  CHECK(worker.size().columns == 96);
  CHECK(worker.size().rows == 30);

  bool told = false;
  screen.output->on_resized([&] { told = true; });
  for (const int columns : {50, 60}) {  // Each time.
    told = false;
    set_terminal_size(screen.terminal.our_end.get(), {columns, 20});
    ::raise(SIGWINCH);
    for (int i = 0; i < 100 && !told; ++i) {
      screen.io.restart();
      screen.io.run_one_for(1s);
    }
    CHECK(told);
    CHECK(worker.size().columns == columns - 4);
    CHECK(worker.size().rows == 20);
  }
}
