// Equal lines of several writers become one (--collapse-output). A core: time is an argument.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ddprun::launcher {

// Lines wait for equal ones of other writers until every writer has written it or the window has
// passed; they leave in the order in which they first came. A line joins an equal one only when
// that stands behind everything else its writer has here, so each writer's own order is kept.
class EqualLines {
 public:
  using Clock = std::chrono::steady_clock;

  struct Line {
    std::string text;
    std::vector<int> writers;  // Ascending.
  };

  // No line stays longer than `window`; when more than `bytes_max` wait, the oldest leave earlier.
  EqualLines(Clock::duration window, std::size_t bytes_max);

  void add_writer(int writer);     // May write the same lines as the others.
  void remove_writer(int writer);  // Nobody waits for it any more; its lines stay.

  void add(int writer, std::string_view line, Clock::time_point now);

  // The next line to be shown now, if there is one; call until there is none.
  std::optional<Line> take(Clock::time_point now);
  // The same whatever the time; while any line of `writer` waits.
  std::optional<Line> take_of(int writer);
  std::optional<Line> take_any();

  // When take() will have something, if nothing else comes before.
  std::optional<Clock::time_point> deadline() const;
  std::size_t bytes() const { return bytes_; }

 private:
  struct Waiting {
    Line line;
    Clock::time_point since;
  };
  struct Writer {
    std::uint64_t next = 0;  // Its next line stands here or later.
    int streams = 0;         // That are open; 0: nobody waits for it.
  };

  std::uint64_t end() const { return first_ + waiting_.size(); }
  static std::size_t cost(const Waiting& waiting);
  Line pop();

  Clock::duration window_;
  std::size_t bytes_max_;
  std::deque<Waiting> waiting_;  // Numbered first_, first_ + 1 ...
  std::uint64_t first_ = 0;
  std::size_t bytes_ = 0;
  std::map<int, Writer> writers_;
  std::unordered_map<std::string_view, std::deque<std::uint64_t>> places_;  // Of equal lines.
};

}  // namespace ddprun::launcher
