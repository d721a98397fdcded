// Which lines somebody who follows a stream is shown, and when.
#include "launcher/watch/shown_lines.h"

#include <string>
#include <utility>
#include <vector>

#include "tests/testing/catch.h"

using ddprun::launcher::ShownLines;

namespace {

// A stream, and what was shown of it since the last question.
struct Stream {
  std::vector<std::string> add(const std::string& bytes) {
    lines.add(bytes, show);
    return std::exchange(shown, {});
  }
  std::vector<std::string> state() {
    lines.show_state(show);
    return std::exchange(shown, {});
  }
  std::vector<std::string> finish() {
    lines.finish(show);
    return std::exchange(shown, {});
  }

  ShownLines lines;
  std::vector<std::string> shown;
  ShownLines::Show show = [this](std::string_view line) {
    shown.emplace_back(line);
    return true;
  };
};

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("17.2: lines are shown when they end, whatever pieces they come in", "[watch]") {
  Stream stream;
  CHECK(stream.add("one\ntw") == Lines{"one"});
  CHECK(stream.add("").empty());
  CHECK(stream.add("o").empty());
  CHECK(stream.state().empty());
  CHECK(stream.add("\n\nthree") == Lines{"two", ""});
  CHECK(stream.finish() == Lines{"three"});
  CHECK(stream.finish().empty());
}

TEST_CASE("17.2: a progress bar is shown where it stands, and each state once", "[watch]") {
  Stream stream;
  CHECK(stream.add("  0%").empty());
  CHECK(stream.state().empty());  // It may go on to be any line.
  CHECK(stream.add("\r 10%\r 20%").empty());
  CHECK(stream.state() == Lines{" 20%"});
  CHECK(stream.state().empty());
  CHECK(stream.add("\r 30%").empty());
  CHECK(stream.add("\r 40%").empty());
  CHECK(stream.state() == Lines{" 40%"});
  CHECK(stream.add("\r100%").empty());
  CHECK(stream.add("\nnext\n") == Lines{"100%", "next"});

  // One that ends its states with '\r'.
  CHECK(stream.add("50%\r").empty());
  CHECK(stream.state() == Lines{"50%"});
  CHECK(stream.add("60%\r").empty());
  CHECK(stream.state() == Lines{"60%"});
  CHECK(stream.add("\n").empty());  // That was shown already.

  // Wiped out, for a line in its place.
  CHECK(stream.add("\r70%").empty());
  CHECK(stream.add("\r    \r").empty());
  CHECK(stream.state().empty());
  CHECK(stream.add("a word\n") == Lines{"a word"});
}

TEST_CASE("17.2: a line that ends as on Windows is no progress bar", "[watch]") {
  Stream stream;
  CHECK(stream.add("one\r\n\r\ntwo\r") == Lines{"one", ""});
  CHECK(stream.add("\n\r") == Lines{"two"});
  CHECK(stream.add("\n") == Lines{""});
}

TEST_CASE("17.2: what comes without a line's end is kept within a bound", "[watch]") {
  Stream stream;
  const std::string piece(ShownLines::line_bytes_max / 2, 'x');
  CHECK(stream.add(piece).empty());
  const Lines shown = stream.add(piece);
  REQUIRE(shown.size() == 1);
  CHECK(shown[0].size() == ShownLines::line_bytes_max);
  for (int i = 0; i < 10; ++i) CHECK(stream.add("\r" + piece).empty());
  CHECK(stream.add("\rend\n") == Lines{"end"});
}

TEST_CASE("17.2: where nobody reads any more nothing else is shown", "[watch]") {
  ShownLines lines;
  int shown = 0;
  CHECK_FALSE(lines.add("one\ntwo\n", [&](std::string_view) { return ++shown < 1; }));
  CHECK(shown == 1);
}
