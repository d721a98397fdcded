// The order in which a failure becomes known, in one place: nobody else may abort a communicator
// for an exception of their own before it is recorded.
#include "worker/declare_failure.h"

#include "worker/error_file.h"

namespace ddprun::worker {

void declare_failure(Communicator* communicator, const std::string& what) noexcept {
  // Must be on the disk before a peer hears of it. A file that could not be written must not keep
  // the peers waiting, though: they will say the reason in its place.
  record_error(what);
  if (communicator == nullptr || communicator->world_size() == 1) return;
  try {
    const std::string self = "rank " + std::to_string(communicator->rank());
    // Where a peer's failure ended this rank, the peers know a reason already, and the first one
    // stays.
    communicator->abort(what.starts_with(self + ":") ? what : self + " failed: " + what);
  } catch (...) {  // No memory left for the text.
    communicator->abort("a rank failed, and had no memory left to say why");
  }
}

}  // namespace ddprun::worker
