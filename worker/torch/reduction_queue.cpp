// The two queues: a thread for the CPU, where a collective returns when its result is there; a
// stream for CUDA, where it only queues.
#include "worker/torch/reduction_queue.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "worker/owning_process.h"
#include "worker/torch/shared_by_communicator.h"

namespace ddprun::worker {
namespace {

void call_plainly(const ReductionQueue::Work& work, Communicator& communicator) {
  const at::NoGradGuard no_grad;
  // Backward has that of the thread that called it.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  work(communicator);
}

class ThreadQueue : public ReductionQueue {
 public:
  explicit ThreadQueue(Communicator& communicator)
      : communicator_(communicator), thread_([this] { serve(); }) {}

  ~ThreadQueue() override {
    if (!owner_.is_this()) {
      leave_to_parent(thread_);
      leave_to_parent(submitted_);
      leave_to_parent(finished_);
      return;
    }
    bool busy = false;
    {
      const std::lock_guard lock(mutex_);
      busy = unfinished_ > 0;
      stopping_ = true;
    }
    // Or the thread would wait for peers that wait for the next gradients of this rank.
    if (busy) communicator_.abort("a rank stopped training while gradients were being reduced");
    submitted_.notify_one();
    thread_.join();
  }

  void all_reduce(void* data, std::size_t count, DataType type, ReduceOp op) override {
    submit([=](Communicator& communicator) { communicator.all_reduce(data, count, type, op); });
  }

  void run(Work work) override {
    submit(
        [work = std::move(work)](Communicator& communicator) { call_plainly(work, communicator); });
  }

  void wait() override {
    std::unique_lock lock(mutex_);
    if (unfinished_ > 0) {
      const auto start = std::chrono::steady_clock::now();
      finished_.wait(lock, [this] { return unfinished_ == 0; });
      exposed_ += std::chrono::steady_clock::now() - start;
    }
    if (error_) std::rethrow_exception(error_);
  }

  bool idle() const override {
    const std::lock_guard lock(mutex_);
    return unfinished_ == 0;
  }

  std::chrono::nanoseconds exposed() const override {
    const std::lock_guard lock(mutex_);
    return exposed_;
  }

 private:
  void submit(Work work) {
    {
      const std::lock_guard lock(mutex_);
      if (error_) std::rethrow_exception(error_);
      works_.push_back(std::move(work));
      ++unfinished_;
    }
    submitted_.notify_one();
  }

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      submitted_.wait(lock, [this] { return stopping_ || !works_.empty(); });
      if (works_.empty()) return;
      Work work = std::move(works_.front());
      works_.pop_front();
      lock.unlock();
      std::exception_ptr error = carry_out(work);
      work = nullptr;  // What it holds goes before anybody hears that it is done.
      lock.lock();
      --unfinished_;
      if (error) {  // The order of collectives is lost: nothing after this one can be right.
        if (!error_) error_ = std::move(error);
        unfinished_ -= works_.size();
        works_.clear();
      }
      if (unfinished_ == 0) finished_.notify_all();
    }
  }

  std::exception_ptr carry_out(const Work& work) noexcept {
    try {
      work(communicator_);
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  Communicator& communicator_;
  mutable std::mutex mutex_;  // Protects all below but owner_ and thread_.
  std::condition_variable submitted_;
  std::condition_variable finished_;
  std::deque<Work> works_;
  std::size_t unfinished_ = 0;  // Queued and running.
  std::exception_ptr error_;
  std::chrono::nanoseconds exposed_{0};
  bool stopping_ = false;
  const OwningProcess owner_;
  std::thread thread_;
};

class StreamQueue : public ReductionQueue {
 public:
  StreamQueue(Communicator& communicator, c10::Device device)
      : communicator_(communicator),
        life_(communicator.life()),
        waited_before_(communicator.waited()),
        device_(device),
        guard_(device.type()),
        stream_(guard_.getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
        computed_(device.type()),
        reduced_(device.type()) {}

  ~StreamQueue() override {
    if (!owner_.is_this()) return;
    // A module that lives on keeps its BatchNormGroup, and with it this queue.
    if (life_.expired()) return;
    if (!idle()) communicator_.abort("a rank stopped training while gradients were being reduced");
  }

  void all_reduce(void* data, std::size_t count, DataType type, ReduceOp op) override {
    carry_out([&] {
      communicator_.all_reduce(data, count, type, op, guard_.getStreamNativeHandle(stream_));
    });
  }

  void run(Work work) override {
    carry_out([&] {
      const c10::StreamGuard on_queue(stream_);
      call_plainly(work, communicator_);
    });
  }

  void wait() override {
    if (error_) std::rethrow_exception(error_);
    if (!queued_) return;
    reduced_.record(stream_);
    const c10::Stream current = guard_.getStream(device_);
    communicator_.wait_begins(guard_.getStreamNativeHandle(current));
    reduced_.block(current);
    communicator_.wait_ends(guard_.getStreamNativeHandle(current));
    queued_ = false;
  }

  bool idle() const override { return !queued_; }
  std::chrono::nanoseconds exposed() const override {
    return communicator_.waited() - waited_before_;
  }

 private:
  // The queue's stream goes on when what the current stream has computed so far is there.
  void follow_computation() {
    if (error_) std::rethrow_exception(error_);
    // An event may be recorded again: whoever waits, waits for the recording before its call.
    computed_.record(guard_.getStream(device_));
    computed_.block(stream_);
    queued_ = true;
  }

  template <class Call>
  void carry_out(const Call& call) {
    follow_computation();
    try {
      call();
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

  Communicator& communicator_;
  const std::weak_ptr<const void> life_;  // Of the communicator.
  const std::chrono::nanoseconds waited_before_;
  const OwningProcess owner_;
  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream stream_;
  c10::Event computed_;
  c10::Event reduced_;
  std::exception_ptr error_;
  bool queued_ = false;  // Work was queued that no wait() has covered.
};

}  // namespace

std::shared_ptr<ReductionQueue> reduction_queue_of(Communicator& communicator, c10::Device device) {
  return shared_by_communicator<ReductionQueue>(
      communicator, [&]() -> std::shared_ptr<ReductionQueue> {
        if (device.is_cpu()) return std::make_shared<ThreadQueue>(communicator);
        return std::make_shared<StreamQueue>(communicator, device);
      });
}

}  // namespace ddprun::worker
