// What is yet to happen in the simulated world, in the order of its clock. Nothing waits: the clock
// goes on to whatever comes next.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace ddprun::simulation {

using Milliseconds = std::chrono::milliseconds;

class Schedule {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Event {
    TimePoint at;
    std::uint64_t order = 0;  // Of two at the same time, that which was planned first.
    int process = 0;          // To which it happens, or `nothing`: the world.
    std::function<void()> happen;
  };

  explicit Schedule(TimePoint start) : now_(start) {}

  TimePoint now() const { return now_; }
  void at(TimePoint time, int process, std::function<void()> happen) {
    events_.push({time, ++order_, process, std::move(happen)});
  }
  void after(Milliseconds delay, int process, std::function<void()> happen) {
    at(now_ + delay, process, std::move(happen));
  }

  bool empty() const { return events_.empty(); }
  Event next() {
    Event event = events_.top();
    events_.pop();
    now_ = event.at;
    return event;
  }

 private:
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return std::pair(a.at, a.order) > std::pair(b.at, b.order);
    }
  };

  TimePoint now_;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  std::uint64_t order_ = 0;
};

}  // namespace ddprun::simulation
