// One reason, whichever thread comes first with it.
#include "worker/peers/abortable.h"

namespace ddprun::worker {

std::string Abortable::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

bool Abortable::record(const std::string& reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (aborted()) return false;
  try {
    reason_ = reason.empty() ? "aborted without a reason" : reason;
  } catch (...) {  // Out of memory: the abort itself must still happen.
  }
  // A rank that goes to sleep and then looks here, and a thread that aborts and then wakes it,
  // cannot both miss each other (HostGroup::sleep_unless): like its doorbell, sequentially
  // consistent.
  aborted_.store(true, std::memory_order_seq_cst);
  return true;
}

}  // namespace ddprun::worker
