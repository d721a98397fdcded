// When a broadcast of running statistics can be left to a later forward.
#include "worker/torch/buffer_schedule.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace ddprun::worker {

bool BufferSchedule::before_forward(const std::vector<bool>& in_training, bool reduces) {
  assert(in_training.size() == differs_.size());
  const bool pytorch_sends = std::exchange(last_reduces_, reduces);
  bool send = pytorch_sends && others_;
  if (pytorch_sends && !others_) {
    const bool differ = std::find(differs_.begin(), differs_.end(), true) != differs_.end();
    bool read = false;
    for (std::size_t i = 0; i < differs_.size(); ++i) {
      read = read || (differs_[i] && !in_training[i]);
    }
    // The next forward can make up for this one only if it is sure to be preceded by a broadcast.
    send = read || (differ && !reduces);
  }
  if (send) were_sent();
  for (std::size_t i = 0; i < differs_.size(); ++i) {
    if (in_training[i]) differs_[i] = true;
  }
  return send;
}

}  // namespace ddprun::worker
