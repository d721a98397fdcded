// How busy the GPUs of this node are, for people who look at the job.
//
// Asked only when somebody looks, in a thread, at most once a second: a job that nobody watches
// asks the driver nothing, and a driver that hangs holds up no job.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "launcher/membership/background_call.h"
#include "launcher/status/gpu_use.h"

namespace ddprun::launcher {

class GpuLook {
 public:
  explicit GpuLook(asio::io_context& io);  // Must outlive it.

  // Calls `done` when there is a reading of now, or after a moment without one: what comes later is
  // there for who looks next.
  void refresh(std::function<void()> done);

  // Of the GPUs of this machine as they were a few seconds ago at most; else nothing.
  // `visible_devices`: CUDA_VISIBLE_DEVICES as the workers have inherited it.
  std::vector<std::optional<GpuUse>> uses(const std::vector<int>& worker_pids,
                                          const std::optional<std::string>& visible_devices) const;

 private:
  using Clock = std::chrono::steady_clock;

  void looked();

  BackgroundCall call_;
  asio::steady_timer patience_;
  bool asks_ = false;
  std::vector<std::function<void()>> waiting_;
  std::optional<Clock::time_point> read_at_;
  std::vector<GpuReading> readings_;
};

}  // namespace ddprun::launcher
