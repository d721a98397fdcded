// Which refusals are worth a line. Kept apart from the logger, so that a test needs no clock.
#include "rendezvous/store/peer_log.h"

#include <utility>

namespace ddprun::rendezvous {

PeerLog::Line PeerLog::note(std::string_view peer, Clock::time_point now) {
  if (peers_.size() >= peers_max) peers_.clear();
  const auto [at, first] = peers_.try_emplace(std::string(peer.substr(0, peer.rfind(':'))));
  Peer& known = at->second;
  if (!first && now - known.last_line < interval) {
    ++known.suppressed;
    return {};
  }
  if (!room_for_a_line(now)) {
    ++unsaid_;
    if (first) peers_.erase(at);  // Has had no line yet.
    return {};
  }
  const Line line{true, known.suppressed, std::exchange(unsaid_, 0)};
  known = {now, 0};
  return line;
}

bool PeerLog::room_for_a_line(Clock::time_point now) {
  if (lines_ == 0 || now - began_ >= interval) {
    began_ = now;
    lines_ = 0;
  }
  if (lines_ >= lines_max) return false;
  ++lines_;
  return true;
}

std::string uncounted(const PeerLog::Line& line) {
  std::string text;
  if (line.suppressed > 0) {
    text = " (and " + std::to_string(line.suppressed) + " more of that host since its last line)";
  }
  if (line.others > 0) {
    text += " (and " + std::to_string(line.others) + " of other hosts that were not written)";
  }
  return text;
}

}  // namespace ddprun::rendezvous
