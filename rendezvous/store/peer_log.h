// Says why connections were closed, without letting a noisy peer fill the log.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>

namespace ddprun::rendezvous {

// Decides which refusals are worth a line: one per peer address and `interval`. Time is an
// argument.
class PeerLog {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds interval{30};
  static constexpr std::size_t peers_max = 1'024;  // Remembered; more start afresh.

  struct Line {
    bool wanted = false;
    std::size_t suppressed = 0;  // Refusals of this peer since its last line.
  };
  // `peer` is an address with or without a port; the port is ignored.
  Line note(std::string_view peer, Clock::time_point now);

 private:
  struct Peer {
    Clock::time_point last_line;
    std::size_t suppressed = 0;
  };
  std::unordered_map<std::string, Peer> peers_;
};

}  // namespace ddprun::rendezvous
