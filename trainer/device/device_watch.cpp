// The thread that looks, and one for each question, since nothing says that a question returns.
#include "trainer/device/device_watch.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <system_error>
#include <utility>

namespace ddprun::trainer {

// Shared with its thread, which may outlive the watch.
struct DeviceWatch::Question {
  const Clock::time_point asked_at = Clock::now();
  std::atomic<bool> is_answered = false;
  Clock::time_point answered_at;  // Written before is_answered.
};

DeviceWatch::DeviceWatch(Ask ask, std::chrono::milliseconds limit, GiveUp give_up)
    : ask_(std::move(ask)),
      give_up_(std::move(give_up)),
      went_on_(Clock::now()),
      limit_(limit),
      thread_([this] { run(); }) {}

DeviceWatch::~DeviceWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DeviceWatch::went_on(const char* phase, std::int64_t step) noexcept {
  phase_.store(phase, std::memory_order_relaxed);
  step_.store(step, std::memory_order_relaxed);
  went_on_.store(Clock::now(), std::memory_order_relaxed);
}

void DeviceWatch::ending(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    why_ = why;
    limit_ = std::min(limit_, grace);
    went_on_ = Clock::now();
  }
  changed_.notify_all();
}

void DeviceWatch::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    DeviceSigns signs{went_on_.load(), {}, std::nullopt};
    if (question_ && question_->is_answered) signs.answered = question_->answered_at;
    if (question_ && !question_->is_answered) signs.asked_at = question_->asked_at;
    const DeviceDecision decision = judge_device(signs, limit_, Clock::now());
    if (decision.turn == DeviceTurn::GiveUp) return give_up_(hang());
    if (decision.turn == DeviceTurn::Ask) put_question();
    changed_.wait_until(lock, decision.look_again);
  }
}

void DeviceWatch::put_question() {
  question_ = std::make_shared<Question>();
  const auto work = [ask = ask_, question = question_] {
    try {
      ask();
    } catch (const std::exception&) {  // The host meets it, too.
    }
    question->answered_at = Clock::now();
    question->is_answered = true;
  };
  try {
    std::thread(work).detach();
  } catch (const std::system_error&) {  // No thread is to be had: at the next look, perhaps.
    question_->answered_at = Clock::now();
    question_->is_answered = true;
  }
}

DeviceWatch::Hang DeviceWatch::hang() const {
  const auto stood =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - went_on_.load());
  return {stood, phase_.load(), step_.load(), why_};
}

DeviceWatch::Ask question_to(std::vector<torch::Device> devices) {
  return [devices = std::move(devices)] {
    for (const torch::Device& device : devices) {
      const c10::impl::VirtualGuardImpl guard(device.type());
      // Or LibTorch would go back to GPU 0 afterwards, and make a context there.
      guard.setDevice(device);
      guard.synchronizeDevice(device.index());
    }
  };
}

}  // namespace ddprun::trainer
