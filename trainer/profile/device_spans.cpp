// Events carry the times: asking the GPU in between would change what is measured.
#include "trainer/profile/device_spans.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>
#include <utility>

#include "trainer/profile/span_recorder.h"

namespace ddprun::trainer {

DeviceSpans::DeviceSpans(c10::Device device) : device_(device) {}

c10::Stream DeviceSpans::current_stream() const {
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

// LibTorch's number of a stream that it did not make is the stream's address (CUDAStream.h).
c10::Stream DeviceSpans::native_stream(void* stream) const {
  return c10::Stream(c10::Stream::UNSAFE, device_, reinterpret_cast<c10::StreamId>(stream));
}

c10::Event DeviceSpans::record(c10::Stream stream) const {
  // The backend's default is an event with a time; PyTorch's default is one without.
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(stream);
  return event;
}

void DeviceSpans::start() {
  pending_.clear();
  origin_ = record(current_stream());
  // The only wait: it ties the GPU's clock to the host's, since events tell differences alone.
  origin_->synchronize();
  origin_ns_ = SpanRecorder::now_ns();
}

void DeviceSpans::begin(std::int64_t track, const std::string& name, const char* category,
                        c10::Stream stream) {
  end(track, stream);
  TraceSpan span;
  span.name = name;
  span.category = category;
  span.thread = track;
  c10::Event ended(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  pending_.push_back(Pending{std::move(span), record(stream), std::move(ended)});
}

void DeviceSpans::end(std::int64_t track, c10::Stream stream) {
  for (auto pending = pending_.rbegin(); pending != pending_.rend(); ++pending) {
    if (pending->span.thread != track) continue;
    if (!pending->ended) {
      pending->end.record(stream);
      pending->ended = true;
    }
    return;
  }
}

std::vector<TraceSpan> DeviceSpans::take() {
  constexpr double ns_per_ms = 1e6;
  std::vector<TraceSpan> spans;
  for (Pending& pending : std::exchange(pending_, {})) {
    if (!pending.ended || !origin_) continue;
    pending.end.synchronize();
    const auto host_ns = [&](const c10::Event& event) {
      return origin_ns_ + std::llround(ns_per_ms * origin_->elapsedTime(event));
    };
    pending.span.start_ns = host_ns(pending.begin);
    pending.span.end_ns = host_ns(pending.end);
    spans.push_back(std::move(pending.span));
  }
  return spans;
}

}  // namespace ddprun::trainer
