// When a wait for peers is worth a word, long before it ends with an error: whoever looks at a run
// that stands still must see why.
//
//   0 --------- slow_wait ------------------ timeout
//               told of, once                the call fails
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace ddprun::worker {

struct CommunicatorOptions;

struct SlowWaitLimits {
  std::chrono::milliseconds slow{30'000};
  std::chrono::milliseconds timeout{600'000};
};

// Whether a wait is to be told of now. Not at all where the timeout comes first. Core.
bool slow_wait_is_due(std::chrono::milliseconds waited, bool told, const SlowWaitLimits& limits);

// Tells of slow waits, and says what the limits are in the words of CommunicatorOptions.
class SlowWaitTeller {
 public:
  using Clock = std::chrono::steady_clock;

  explicit SlowWaitTeller(const CommunicatorOptions& options);

  bool is_due(Clock::time_point since, bool told, Clock::time_point now) const;
  // When is_due() is worth asking at the latest; `deadline`: when it no longer is.
  Clock::time_point next_look(Clock::time_point since, bool told, Clock::time_point deadline) const;
  // `call` as in "all_reduce(...), call 17"; `cause`: "rank 1 did not answer (...)".
  void tell(int rank, Clock::duration waited, const std::string& call,
            const std::string& cause) const;
  // Anything else that is worth a word.
  void tell(const std::string& text) const { tell_(text); }
  // "timed out after 600 s (--collective-timeout sets the limit)"
  std::string timed_out() const;

 private:
  SlowWaitLimits limits_;
  std::string timeout_name_;
  std::function<void(const std::string&)> tell_;
};

}  // namespace ddprun::worker
