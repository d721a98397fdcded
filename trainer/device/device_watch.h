// Ends a process whose device hangs: the thread that waits for it cannot do so itself, wherever it
// stands: in CUDA, in LibTorch's allocator, in the destructor of a communicator.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trainer/device/hung_device.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

class DeviceWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // Besides the collective timeout: within it the communicator finds out that work on the device is
  // late, asks the peers why, and ends it.
  static constexpr std::chrono::milliseconds grace{10'000};

  // How long the host has stood still, and in what.
  struct Hang {
    std::chrono::milliseconds stood;
    std::string in;  // Of went_on(); "" before the first.
    std::int64_t step;
    std::string why;  // Of ending(); "": the host did not know that anything was wrong.
  };
  // Returns when the device has done all that it was given, and where it has failed: not the hang
  // that is looked for. Called on a thread of its own.
  using Ask = std::function<void()>;
  // On the watch's thread, once, with ending() kept waiting; is to end the process.
  using GiveUp = std::function<void(const Hang& hang)>;

  DeviceWatch(Ask ask, std::chrono::milliseconds limit, GiveUp give_up);
  ~DeviceWatch();  // A question that was not answered stays behind.
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  // The host goes on, with what `phase` says, which must stay, after so many steps. From one
  // thread; takes no lock.
  void went_on(const char* phase, std::int64_t step) noexcept;
  // The host has failed of `why` and leaves what it had: the device gets so long for that at most.
  // Does not return while the process is being ended.
  void ending(const std::string& why);

 private:
  struct Question;
  void run();
  void put_question();
  Hang hang() const;

  const Ask ask_;
  const GiveUp give_up_;
  std::atomic<Clock::time_point> went_on_;
  std::atomic<const char*> phase_{""};
  std::atomic<std::int64_t> step_{0};

  std::mutex mutex_;  // Guards what follows.
  std::condition_variable changed_;
  std::chrono::milliseconds limit_;
  std::string why_;
  bool stop_ = false;
  std::shared_ptr<Question> question_;  // The last one; null before it.
  std::thread thread_;
};

// Of all that these devices were given, on any stream.
DeviceWatch::Ask question_to(std::vector<torch::Device> devices);

}  // namespace ddprun::trainer
