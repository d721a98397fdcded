// How long work takes on a GPU: events are recorded on its streams around what the host queues,
// and read once the GPU has done it. The host never waits before that.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "trainer/profile/trace.h"

namespace ddprun::trainer {

// Not thread-safe. For devices other than the CPU.
class DeviceSpans {
 public:
  explicit DeviceSpans(c10::Device device);

  // The computing stream of the calling thread.
  c10::Stream current_stream() const;
  // A cudaStream_t as LibTorch sees it; null is the default stream.
  c10::Stream native_stream(void* stream) const;

  // Waits for the device once, to know the host's time of an event.
  void start();

  // A track has one span at a time: begin() ends the one before.
  void begin(std::int64_t track, const std::string& name, const char* category, c10::Stream stream);
  void end(std::int64_t track, c10::Stream stream);

  // Waits for the device; all spans that have ended since start(), in the host's time.
  std::vector<TraceSpan> take();

 private:
  struct Pending {
    TraceSpan span;
    c10::Event begin, end;
    bool ended = false;
  };

  c10::Event record(c10::Stream stream) const;

  c10::Device device_;
  std::optional<c10::Event> origin_;
  std::int64_t origin_ns_ = 0;  // The host's time of origin_.
  std::deque<Pending> pending_;
};

}  // namespace ddprun::trainer
