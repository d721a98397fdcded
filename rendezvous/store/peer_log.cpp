// Which refusals are worth a line. Kept apart from the logger, so that a test needs no clock.
#include "rendezvous/store/peer_log.h"

namespace ddprun::rendezvous {

PeerLog::Line PeerLog::note(std::string_view peer, Clock::time_point now) {
  if (peers_.size() >= peers_max) peers_.clear();
  const auto [at, first] = peers_.try_emplace(std::string(peer.substr(0, peer.rfind(':'))));
  Peer& known = at->second;
  if (!first && now - known.last_line < interval) {
    ++known.suppressed;
    return {};
  }
  const Line line{true, known.suppressed};
  known = {now, 0};
  return line;
}

}  // namespace ddprun::rendezvous
