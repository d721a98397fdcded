// Instead of a GPU and NCCL: those of their functions that worker/nccl/ needs to ask, to wait, to
// end and to free, doing what a test says. Linked in place of libcudart and libnccl.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/testing/patience.h"

namespace ddprun::testing {

// Something that happens once, in some thread.
class Happening {
 public:
  void happen() {
    {
      const std::lock_guard lock(mutex_);
      happened_ = true;
    }
    changed_.notify_all();
  }
  // False: it did not come within a test's patience.
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience(std::chrono::seconds{10}), [&] { return happened_; });
  }
  bool has_happened() {
    const std::lock_guard lock(mutex_);
    return happened_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool happened_ = false;
};

struct FakeDevice {
  std::mutex mutex;                              // Of what follows, where there is another thread.
  std::map<cudaEvent_t, cudaError_t> events;     // What each says when asked; made: not ready.
  std::deque<char> handles;                      // Places that events point to.
  std::vector<cudaEvent_t> recorded;             // In order.
  std::map<cudaEvent_t, unsigned> record_flags;  // Of the last time.
  std::map<cudaEvent_t, float> times_ms;         // When the device passed it.
  std::vector<std::string> called;               // Functions of NCCL that queue work, in order.
  struct Reduction {
    ncclRedOp_t op;
    cudaStream_t stream;
    bool operator==(const Reduction&) const = default;
  };
  std::vector<Reduction> reductions;  // What ncclAllReduce was asked for.
  const void* gathered = nullptr;     // What ncclAllGather was to send.

  // Set before there is another thread.
  std::function<void()> on_abort = [] {};  // In ncclCommAbort.
  std::function<void()> on_free = [] {};   // In cudaFree and ncclMemFree.
  std::function<void()> on_synchronize = [] {};
  int devices = 1;
  bool full = false;       // Of its memory nothing is left.
  std::set<void*> memory;  // That was not given back.
  // What NCCL may still use was left behind, for good.
  void free_left_behind() {
    const std::lock_guard lock(mutex);
    for (void* left : memory) std::free(left);
    memory.clear();
  }
  // A function of CUDA that answers with an error, as all do after a kernel has failed.
  std::atomic<const char*> failing{nullptr};

  void end_work() {  // All that was queued is done.
    const std::lock_guard lock(mutex);
    for (auto& [event, status] : events) status = cudaSuccess;
  }

  std::atomic<bool> capturing{false};  // All streams record into a graph, in CUDA's default mode.
  std::atomic<unsigned long long> capture_id{1};
  std::atomic<int> looks_while_capturing{0};  // At events; the second one happens below.
  Happening looked_twice;

  // So often NCCL and the stream say that they are not done yet. Then what comes of it.
  std::atomic<int> nccl_looks{0};
  std::atomic<ncclResult_t> nccl_result{ncclSuccess};
  std::atomic<int> stream_looks{0};
  std::atomic<cudaError_t> stream_result{cudaSuccess};
};

// That of the test that runs; each makes one first.
extern FakeDevice* device;

}  // namespace ddprun::testing
