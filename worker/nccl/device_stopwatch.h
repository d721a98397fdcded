// How long a stream has stood for other ranks, by the device's clock: an event before each wait and
// one behind it, read when the device is past them. The host never waits for it.
//
//   own work --- begin() --- what another stream reduces --- end() --- own work
//
// In a CUDA graph the two are nodes, which each replay passes anew. They are read when the last
// replay is done, and its wait stands for those of the replays since the look before: whole at any
// point at which the host has waited for the device.
//
// A measure is not worth a training. Where CUDA refuses one there is none from then on, and nobody
// else meets the error.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <deque>
#include <optional>
#include <vector>

#include "worker/owning_process.h"

namespace ddprun::worker {

// Not safe from several threads. The streams are those of the current device, always the same one.
class DeviceStopwatch {
 public:
  DeviceStopwatch() = default;
  ~DeviceStopwatch();
  DeviceStopwatch(const DeviceStopwatch&) = delete;
  DeviceStopwatch& operator=(const DeviceStopwatch&) = delete;

  // Around what makes the stream wait; also while it is captured.
  void begin(cudaStream_t stream);
  void end(cudaStream_t stream);
  // The graph that was recorded last has been launched on `stream`.
  void replayed(cudaStream_t stream);

  // Of all waits that the device is known to be past. While a graph is recorded: as before it.
  std::chrono::nanoseconds total();

 private:
  struct Wait {
    cudaEvent_t from = nullptr;
    cudaEvent_t to = nullptr;
    void leave_events(std::vector<cudaEvent_t>& events) const {
      events.push_back(from);
      events.push_back(to);
    }
  };

  bool succeeds(cudaError_t status);  // False: nothing is measured any more.
  bool follow_capture(cudaStream_t stream);
  cudaEvent_t record(cudaStream_t stream);
  bool is_done(cudaEvent_t event);
  void look();
  void add(const Wait& wait, int times);

  const OwningProcess owner_{};
  std::chrono::nanoseconds total_{0};
  cudaEvent_t begun_ = nullptr;             // Of a wait that has no end() yet.
  std::deque<Wait> queued_;                 // In the order of the stream.
  std::vector<cudaEvent_t> spare_;          // To be recorded again.
  std::optional<unsigned long long> into_;  // The capture at hand, if there is one.
  unsigned long long recorded_in_ = 0;      // The capture that has what follows.
  std::vector<Wait> recorded_;
  std::vector<cudaEvent_t> older_;     // Never recorded again: a graph may still pass them.
  int replays_ = 0;                    // Since the last look at them.
  cudaEvent_t replays_end_ = nullptr;  // Behind the last one.
  bool broken_ = false;
};

}  // namespace ddprun::worker
