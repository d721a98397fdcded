// The pure parts of output: colors, prefixes, filters, where log files are cut, equal lines.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <future>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>

#include "launcher/output/color.h"
#include "launcher/output/equal_lines.h"
#include "launcher/output/filter.h"
#include "launcher/output/log.h"
#include "launcher/output/prefix.h"
#include "tests/testing/catch.h"
#include "tests/testing/failing_call.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using ddprun::testing::content_of;
using namespace std::chrono_literals;

namespace {

// WCAG 2's contrast of an entry of the 6 x 6 x 6 color cube to black and white; the smaller.
double least_contrast(int color) {
  const int levels[] = {0, 95, 135, 175, 215, 255};
  const auto light = [&](int level) {
    const double value = levels[level] / 255.0;
    return value <= 0.03928 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
  };
  const int cube = color - 16;
  const double luminance =
      0.2126 * light(cube / 36) + 0.7152 * light(cube / 6 % 6) + 0.0722 * light(cube % 6);
  return std::min((luminance + 0.05) / 0.05, 1.05 / (luminance + 0.05));
}

std::string filtered(LineFilter& filter, const std::string& bytes) {
  std::string found;
  filter.add(bytes, found);
  return found;
}

using Time = EqualLines::Clock::time_point;
const Time start = Time{} + 1h;

// What leaves now: "text:writer,writer" joined by '|'.
std::string taken(EqualLines& lines, Time now) {
  std::string text;
  while (const auto line = lines.take(now)) {
    text += (text.empty() ? "" : "|") + line->text + ":" + rank_set(line->writers);
  }
  return text;
}

EqualLines of_writers(int count, std::size_t bytes_max = 1 << 20) {
  EqualLines lines(100ms, bytes_max);
  for (int writer = 0; writer < count; ++writer) lines.add_writer(writer);
  return lines;
}

}  // namespace

TEST_CASE("colors appear on a capable terminal that was not told otherwise", "[output][color]") {
  const auto automatic = [](bool terminal, std::optional<std::string> no_color,
                            std::optional<std::string> term) {
    return use_color(ColorWhen::Auto, terminal, no_color, term);
  };
  CHECK(automatic(true, std::nullopt, "xterm"));
  CHECK(automatic(true, "", "xterm"));  // Set but empty means nothing.
  CHECK_FALSE(automatic(true, "0", "xterm"));
  CHECK_FALSE(automatic(true, std::nullopt, "dumb"));
  CHECK_FALSE(automatic(true, std::nullopt, std::nullopt));
  CHECK_FALSE(automatic(false, std::nullopt, "xterm"));
  CHECK(use_color(ColorWhen::Always, false, "1", "dumb"));
  CHECK_FALSE(use_color(ColorWhen::Never, true, std::nullopt, "xterm"));
}

TEST_CASE("every color can be read on black and on white", "[output][color]") {
  for (int rank = 0; rank < 64; ++rank) {
    INFO("color " << rank_color(rank));
    CHECK(least_contrast(rank_color(rank)) >= 3);
    CHECK(rank_color(rank) != rank_color(rank + 1));
  }
  CHECK(least_contrast(line_color(LineKind::Warning)) >= 3);
  CHECK(least_contrast(line_color(LineKind::Error)) >= 3);
  CHECK(colored("text", line_color(LineKind::Plain)) == "text");
  CHECK(colored("text", 160) == "\033[38;5;160mtext\033[39m");
}

TEST_CASE("a prefix's names need no braces, as in Python's templates", "[output][prefix]") {
  CHECK(LinePrefix{"$role_name-$rank $local_rank$$ $other ${open", "gpu", 8}.of(2) ==
        "gpu-10 2$ $other ${open");
  CHECK(LinePrefix{"$role_name ", "$rank", 0}.of(2) == "$rank ");  // A value is not read again.
}

TEST_CASE("a name that a prefix does not fill in is found", "[output][prefix]") {
  CHECK(unknown_in_prefix("$$rnak $${x} ${open $ ${} ${role_name}$rank") == "");
  CHECK(unknown_in_prefix("${rank} ${rnak} ${other}") == "rnak");
  CHECK(unknown_in_prefix("$local-rank:") == "local");
}

TEST_CASE("a prefix can name one rank or several", "[output][prefix]") {
  const LinePrefix prefix{"${role_name}${local_rank}/${rank}: ", "gpu", 8};
  CHECK(prefix.of(2) == "gpu2/10: ");
  CHECK(prefix.of({0, 1, 2, 5, 7, 8}) == "gpu0-2,5,7-8/8-10,13,15-16: ");
  CHECK(LinePrefix{}.of({0, 1}).empty());
  CHECK(LinePrefix{"${hostname}:${rank}: ", "gpu", 8, "r12i0n8"}.of({1, 2}) == "r12i0n8:9-10: ");
}

TEST_CASE("a filter keeps the lines with any of its texts, as torchrun reads lines",
          "[output][filter]") {
  LineFilter filter({"apple", "1,5"}, "[default0]:");
  CHECK(filtered(filter, "an apple\nnothing\nword 1,5 comma\n 1 5\n") ==
        "[default0]:an apple\n[default0]:word 1,5 comma\n");
  CHECK(filtered(filter, "app").empty());
  CHECK(filtered(filter, "le\r") == "[default0]:apple\n");
  CHECK(filtered(filter, "\nx\r").empty());  // The '\n' belongs to the '\r' before.
  CHECK(filtered(filter, "\r\n\napple 1\rapple 2\r\nlast apple") ==
        "[default0]:apple 1\n[default0]:apple 2\n");
  std::string found;
  filter.finish(found);
  CHECK(found == "[default0]:last apple\n");
}

TEST_CASE("an empty text is in every line, and an endless line is looked at in pieces",
          "[output][filter]") {
  LineFilter all({""}, "");
  CHECK(filtered(all, "a\n\nb\n") == "a\n\nb\n");
  LineFilter some({"x"}, "");
  std::size_t found = 0;
  for (int i = 0; i < 64; ++i) found += filtered(some, std::string(4096, 'x')).size();
  CHECK(found >= 64 * 4096);
}

TEST_CASE("log files are cut at line ends and hold every byte", "[output][log]") {
  std::mt19937 random(20261121);
  for (int round = 0; round < 50; ++round) {
    const ddprun::testing::TemporaryFolder folder;
    const std::string path = folder / "stdout.log";
    const std::size_t bytes_max = 50 + random() % 200;
    std::string sent;
    {
      OutputLog log(path, {bytes_max, -1});
      for (int piece = 0; piece < 200; ++piece) {
        std::string bytes(random() % 60, static_cast<char>('a' + piece % 26));
        for (char& letter : bytes) {
          if (random() % 20 == 0) letter = '\n';
        }
        sent += bytes;
        REQUIRE(log.write(bytes) == 0);
      }
    }
    std::string read;
    int files = 0;
    for (; std::filesystem::exists(path + "." + std::to_string(files + 1)); ++files) {
      const std::string text = content_of(path + "." + std::to_string(files + 1));
      REQUIRE_FALSE(text.empty());
      REQUIRE(text.size() <= 2 * bytes_max);
      // Longer than asked for only by its last line, cut within a line only at the very end.
      REQUIRE(text.find_last_of('\n', text.size() - 2) + 1 <= bytes_max);
      if (text.back() != '\n') REQUIRE(text.size() == 2 * bytes_max);
      read += text;
    }
    CHECK(files > 5);
    REQUIRE(read + content_of(path) == sent);
  }
}

TEST_CASE("a line that fits exactly fills the file, and none is left empty", "[output][log]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string path = folder / "deep/er/stdout.log";
  OutputLog log(path, {4, -1});
  CHECK(log.write("abc\n") == 0);
  CHECK_FALSE(std::filesystem::exists(path + ".1"));
  CHECK(log.write("de\nf") == 0);
  CHECK(content_of(path + ".1") == "abc\n");
  CHECK(content_of(path) == "de\nf");
}

TEST_CASE("a log file that somebody removes or moves costs no later line", "[output][log]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string path = folder / "stdout.log";
  OutputLog log(path, {4, 1});
  CHECK(log.write("abc\n") == 0);
  std::filesystem::remove(path);
  CHECK(log.write("def\nghi\n") == 0);
  CHECK(full_logs(path) == std::vector<int>{1});
  CHECK(content_of(path + ".1") == "def\n");
  CHECK(content_of(path) == "ghi\n");
}

TEST_CASE("only so many full log files are kept", "[output][log]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string path = folder / "stdout.log";
  OutputLog log(path, {2, 2});
  CHECK(log.write("a\nb\nc\nd\ne\n") == 0);
  CHECK_FALSE(std::filesystem::exists(path + ".1"));
  CHECK_FALSE(std::filesystem::exists(path + ".2"));
  CHECK(full_logs(path) == std::vector<int>{3, 4});
  CHECK(content_of(path + ".3") == "c\n");
  CHECK(content_of(path + ".4") == "d\n");
  CHECK(content_of(path) == "e\n");
}

TEST_CASE("a log that is there already is gone on with, and keeps its full files",
          "[output][log]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string path = folder / "stdout.log";
  for (const char* text : {"a\nb\nc\nd\ne\n", "f\ng\nabc", "d\ne\n"}) {
    OutputLog log(path, {4, -1});
    CHECK(log.write(text) == 0);
  }
  CHECK(full_logs(path) == std::vector<int>{1, 2, 3, 4, 5});
  CHECK(content_of(path + ".1") == "a\nb\n");
  CHECK(content_of(path + ".2") == "c\nd\n");
  CHECK(content_of(path + ".3") == "e\nf\n");
  CHECK(content_of(path + ".4") == "g\n");
  CHECK(content_of(path + ".5") == "abcd\n");  // A line that had begun there ends there.
  CHECK(content_of(path) == "e\n");

  OutputLog last_only(path, {4, 1});
  CHECK(last_only.write("f\ng\n") == 0);
  CHECK(full_logs(path) == std::vector<int>{6});
}

TEST_CASE("two who write one log by turns overwrite nothing", "[output][log]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string path = folder / "stdout.log";
  OutputLog one(path, {2, -1}), two(path, {2, -1});
  CHECK(one.write("a\nb\n") == 0);
  CHECK(two.write("c\nd\n") == 0);
  std::string all = content_of(path);
  for (const int number : full_logs(path)) all += content_of(full_log_path(path, number));
  std::sort(all.begin(), all.end());
  CHECK(all == "\n\n\n\nabcd");
}

TEST_CASE("a full log keeps its number where a rename or a link would not spare it",
          "[output][log]") {
  using ddprun::testing::FailingCall;
  std::vector<FailingCall> missing;
  for (const int call : {__NR_renameat2, __NR_linkat}) {
    missing.push_back({call});
#ifdef __NR_link
    if (call == __NR_linkat) missing.push_back({__NR_link});
#endif
    const ddprun::testing::TemporaryFolder folder;
    const std::string path = folder / "stdout.log";
    const bool tried = ddprun::testing::with_failing_calls(missing, ENOSYS, [&] {
      OutputLog one(path, {2, -1}), two(path, {2, -1});
      CHECK(one.write("a\nb\n") == 0);
      CHECK(two.write("c\nd\n") == 0);
    });
    if (!tried) DDPRUN_SKIP("this kernel has no seccomp");
    CHECK(full_logs(path) == std::vector<int>{1, 2});
    CHECK(content_of(path + ".1") == "a\nc\n");
    CHECK(content_of(path + ".2") == "b\n");
    CHECK(content_of(path) == "d\n");
  }
}

TEST_CASE("a next log file that cannot be made is made when it can be", "[output][log]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string path = folder / "stdout.log";
  OutputLog log(path, {8, -1});
  CHECK(log.write("1234567\n") == 0);
  const bool tried = ddprun::testing::with_failing_calls({{__NR_openat}}, ENOSPC, [&] {
    for (int time = 0; time < 2; ++time) CHECK(log.write("de\n") == ENOSPC);
  });
  if (!tried) DDPRUN_SKIP("this kernel has no seccomp");
  CHECK(log.write("fg\n") == 0);
  CHECK(content_of(path + ".1") == "1234567\n");
  CHECK(content_of(path) == "fg\n");
}

TEST_CASE("two who write one log at the same time overwrite nothing", "[output][log]") {
  constexpr int lines = 1'000;
  const ddprun::testing::TemporaryFolder folder;
  const std::string path = folder / "stdout.log";
  const auto write = [&](char first) {
    OutputLog log(path, {8, -1});  // A line or two.
    int written = 0;
    for (int i = 0; i < lines; ++i) {
      if (log.write(std::string(1, first) + std::to_string(i) + "\n") == 0) ++written;
    }
    return written;
  };
  auto other = std::async(std::launch::async, write, 'b');
  CHECK(write('a') == lines);
  CHECK(other.get() == lines);

  std::string all = content_of(path);
  for (const int number : full_logs(path)) all += content_of(full_log_path(path, number));
  std::set<std::string> found;
  std::istringstream text(all);
  for (std::string line; std::getline(text, line);) found.insert(line);
  CHECK(found.size() == 2 * lines);
}

TEST_CASE("a line that all have written leaves at once, as one", "[output][collapse]") {
  EqualLines lines = of_writers(3);
  lines.add(2, "same", start);
  lines.add(0, "same", start);
  CHECK(taken(lines, start + 99ms).empty());
  lines.add(1, "same", start + 99ms);
  CHECK(taken(lines, start + 99ms) == "same:0-2");
  CHECK_FALSE(lines.deadline());
  CHECK(lines.bytes() == 0);
}

TEST_CASE("no line waits longer than the window, whatever the others do", "[output][collapse]") {
  EqualLines lines = of_writers(2);
  lines.add(0, "mine", start);
  lines.add(0, "both", start + 10ms);
  lines.add(1, "both", start + 20ms);
  CHECK(lines.deadline() == start + 100ms);
  CHECK(taken(lines, start + 99ms).empty());
  CHECK(taken(lines, start + 100ms) == "mine:0|both:0-1");
}

TEST_CASE("each writer's own order is kept", "[output][collapse]") {
  EqualLines lines = of_writers(2);
  lines.add(0, "a", start);
  lines.add(0, "b", start);
  lines.add(1, "b", start);
  lines.add(1, "a", start);  // Behind its b: it may not join the first a.
  CHECK(taken(lines, start + 100ms) == "a:0|b:0-1|a:1");
}

TEST_CASE("a line repeated by one writer is repeated by the others", "[output][collapse]") {
  EqualLines lines = of_writers(2);
  for (int writer : {0, 1}) {
    for (int i = 0; i < 3; ++i) lines.add(writer, ".", start);
  }
  CHECK(taken(lines, start) == ".:0-1|.:0-1|.:0-1");
}

TEST_CASE("nobody waits for a writer that has ended", "[output][collapse]") {
  EqualLines lines = of_writers(2);
  lines.add(0, "x", start);
  CHECK(taken(lines, start).empty());
  lines.remove_writer(1);
  CHECK(taken(lines, start) == "x:0");
}

TEST_CASE("one that has said a line and ended stands for nobody", "[output][collapse]") {
  EqualLines lines = of_writers(2);
  lines.add(0, "x", start);
  lines.remove_writer(0);
  CHECK(taken(lines, start).empty());
  lines.add(1, "x", start + 1ms);
  CHECK(taken(lines, start + 1ms) == "x:0-1");
}

TEST_CASE("a flood of different lines is bounded", "[output][collapse]") {
  EqualLines lines = of_writers(2, 10'000);
  std::size_t most = 0;
  for (int i = 0; i < 10'000; ++i) {
    lines.add(0, "line " + std::to_string(i), start);
    most = std::max(most, lines.bytes());
    while (lines.take(start)) {
    }
  }
  CHECK(most < 11'000);
  CHECK(lines.bytes() <= 10'000);
}

TEST_CASE("what waits of one writer can be had at once, with all before it", "[output][collapse]") {
  EqualLines lines = of_writers(2);
  lines.add(0, "first", start);
  lines.add(1, "second", start);
  lines.add(0, "third", start);
  CHECK(lines.take_of(1)->text == "first");
  CHECK(lines.take_of(1)->text == "second");
  CHECK_FALSE(lines.take_of(1));
  CHECK(lines.take_any()->text == "third");
  CHECK_FALSE(lines.take_any());
}

TEST_CASE("random lines of many writers leave complete, in order and in time",
          "[output][collapse]") {
  std::mt19937 random(7);
  EqualLines lines = of_writers(4, 3'000);
  std::array<std::string, 4> sent, received;
  Time now = start;
  const auto receive = [&](const std::optional<EqualLines::Line>& line) {
    for (const int writer : line->writers) received[static_cast<std::size_t>(writer)] += line->text;
  };
  for (int step = 0; step < 20'000; ++step) {
    const std::size_t writer = random() % 4;
    const std::string text(1, static_cast<char>('a' + random() % 5));
    sent[writer] += text;
    lines.add(static_cast<int>(writer), text, now);
    now += std::chrono::milliseconds(random() % 3);
    while (const auto line = lines.take(now)) receive(line);
    if (lines.deadline()) REQUIRE(*lines.deadline() > now);
  }
  while (const auto line = lines.take_any()) receive(line);
  CHECK(received == sent);
}
