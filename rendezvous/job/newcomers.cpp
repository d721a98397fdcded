// A row of losses and the pause that grows with it.
#include "rendezvous/job/newcomers.h"

#include <algorithm>

namespace ddprun::rendezvous {

void Newcomers::went(TimePoint now) {
  constexpr int doublings_max = 20;
  row_ = row_ > 0 && now - last_ < limits_.settled + limits_.pause_max ? row_ + 1 : 1;
  last_ = now;
  const Milliseconds pause = std::min<Milliseconds>(
      limits_.pause_first * (1LL << std::min(row_ - 1, doublings_max)), limits_.pause_max);
  pause_ends_ = std::max(pause_ends_, now + pause);
}

std::optional<TimePoint> Newcomers::pause_ends(TimePoint now) const {
  if (row_ == 0 || now >= pause_ends_) return std::nullopt;
  return pause_ends_;
}

}  // namespace ddprun::rendezvous
