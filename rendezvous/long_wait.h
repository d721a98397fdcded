// When somebody who waits for others says so: whoever looks at a job that stands still must see
// why, and the limit of such a wait may be half a day.
//
//   0 ---- first ------ again ------ again ------ ...     until they come, or the limit
//
// A core: times in, words out.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>

namespace ddprun::rendezvous {

struct WaitWords {
  // What is missing, and for how long that has been waited for. Empty: nothing is ever said.
  std::function<void(std::chrono::milliseconds waited, const std::string& problem)> tell;
  std::chrono::milliseconds first{10'000};
  std::chrono::milliseconds again{60'000};
};

class LongWait {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  LongWait(WaitWords words, TimePoint since)
      : words_(std::move(words)), since_(since), next_(since + words_.first) {
    if (!words_.tell) next_ = TimePoint::max();
  }

  TimePoint next() const { return next_; }  // When is_due() is worth asking.
  bool is_due(TimePoint now) const { return now >= next_; }

  // Only when it is due. However late it is, the next word keeps to the rhythm.
  void tell(TimePoint now, const std::string& problem) {
    while (next_ <= now) next_ += words_.again;
    auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - since_);
    if (waited >= std::chrono::seconds{1}) waited -= waited % std::chrono::seconds{1};
    words_.tell(waited, problem);
  }

 private:
  WaitWords words_;
  TimePoint since_;
  TimePoint next_;
};

}  // namespace ddprun::rendezvous
