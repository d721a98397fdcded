// Counts by host and not by connection: a noisy peer comes from another port each time.
#include "rendezvous/store/peer_log.h"

namespace ddprun::rendezvous {

PeerLog::Line PeerLog::note(std::string_view peer, Clock::time_point now) {
  // To forget all at once costs a few lines too many at worst.
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
