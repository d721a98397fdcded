// Says why connections were closed, without letting a noisy peer fill the log.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>

namespace ddprun::rendezvous {

// Decides which refusals are worth a line: one per peer address and `interval`, and no more than
// `lines_max` in an interval for all of them: addresses cost a stranger nothing where he has a
// network of them. Time is an argument.
class PeerLog {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds interval{30};
  static constexpr std::size_t lines_max = 32;
  static constexpr std::size_t peers_max = 1'024;  // Remembered; more start afresh.

  struct Line {
    bool wanted = false;
    std::size_t suppressed = 0;  // Refusals of this peer since its last line.
    std::size_t others = 0;      // Of any, since lines_max was reached.
  };
  // `peer` is an address with or without a port; the port is ignored.
  Line note(std::string_view peer, Clock::time_point now);

 private:
  struct Peer {
    Clock::time_point last_line;
    std::size_t suppressed = 0;
  };
  bool room_for_a_line(Clock::time_point now);

  std::unordered_map<std::string, Peer> peers_;
  Clock::time_point began_{};  // Of the interval that lines_ counts.
  std::size_t lines_ = 0;
  std::size_t unsaid_ = 0;  // Refusals that got no line for want of room.
};

// What a line ends with: "", or how much of the same was not written.
std::string uncounted(const PeerLog::Line& line);

}  // namespace ddprun::rendezvous
