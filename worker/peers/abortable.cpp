// One reason, whichever thread comes first with it.
#include "worker/peers/abortable.h"

#include <utility>

#include "worker/error_file.h"

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

void Abortable::abort_unless_told(const std::string& reason, std::chrono::milliseconds) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    untold_ = reason;
    has_untold_ = true;
  } catch (...) {  // Out of memory: the communicator's end tells less.
  }
}

void Abortable::tell_kept_reason() noexcept {
  try {
    std::string reason;
    {
      const std::lock_guard lock(mutex_);
      if (!has_untold_.exchange(false) || aborted()) return;
      reason = std::move(untold_);
    }
    record_error(reason);  // Before a peer hears of it (declare_failure.h).
    abort(reason);
  } catch (...) {
    abort("");
  }
}

}  // namespace ddprun::worker
