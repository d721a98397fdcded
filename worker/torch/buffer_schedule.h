// Before which forwards the ranks' buffers must be made equal. A core: no sockets, threads or
// clock.
//
// PyTorch overwrites all ranks' buffers with one rank's before a forward if the forward before it
// was one whose backward reduces (it had gradients and was not within no_sync). A forward
// in training mode does not read the running statistics of BatchNorm, so broadcasts of these alone
// are left out as long as a later one is sure to make up for it before anybody reads them:
//
//   forward          training  training  no_sync   evaluation     what they compute, and what
//   PyTorch sends       .         x         x           .         evaluation reads, is the same
//   sent here           .         .         x           .
#pragma once

#include <cstddef>
#include <vector>

namespace ddprun::worker {

class BufferSchedule {
 public:
  // `others`: the module has buffers besides the running statistics of `norms` BatchNorms.
  BufferSchedule(std::size_t norms, bool others) : differs_(norms, false), others_(others) {}

  // Before each forward, with the same arguments on all ranks; true: the buffers must be sent
  // before it. `in_training`: by BatchNorm, whether it is in training mode. `reduces`: the
  // forward's backward reduces gradients.
  bool before_forward(const std::vector<bool>& in_training, bool reduces);

  // All ranks' buffers are equal now.
  void were_sent() { differs_.assign(differs_.size(), false); }

 private:
  std::vector<bool> differs_;  // By BatchNorm: it was in training mode since it was last sent.
  bool others_;
  bool last_reduces_ = true;  // The construction made them equal, so either would do.
};

}  // namespace ddprun::worker
