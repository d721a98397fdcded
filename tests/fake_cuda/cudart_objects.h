// What the handles of CUDA's runtime point to here: a stream is a queue with a thread, an event a
// place in such a queue, a graph the work that a stream was given while it was captured.
//
// What CUDA refuses while a graph is recorded it refuses, too, and that graph is spoilt by it; who
// uses an event that was destroyed ends the process with a word.
//
// Left out: that the null stream waits for others. Device memory is host memory.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

using Work = std::function<void()>;

struct CUuserObject_st {
  void* data;
  cudaHostFn_t destroy;
  unsigned references;  // Of all, under objects_mutex in cudart.cpp.
};

// How much of what each stream has put into a graph comes before a place in it.
using Before = std::map<cudaStream_t, std::size_t>;

struct CUgraph_st {
  ~CUgraph_st();
  unsigned long long id = 0;  // Of its capture.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id recorder;
  std::atomic<bool> spoilt{false};
  std::atomic<bool> under_way{true};
  std::mutex mutex;  // Of the rest: backward has a thread of its own.
  std::vector<Work> work;
  std::map<cudaStream_t, Before> before;  // Of the streams that take part.
  std::vector<cudaUserObject_t> objects;  // One reference of each.
};

struct CUgraphExec_st {
  std::shared_ptr<CUgraph_st> graph;  // Launches that run have it too.
};

// Work never runs before what was given earlier; it may wait for other streams and processes. The
// object stays when the stream is destroyed: another thread may be waiting for the whole device.
struct CUstream_st {
  explicit CUstream_st(int device);

  void give(Work work);  // Into the graph, while one is recorded.
  cudaError_t query();   // cudaErrorNotReady while there is work.
  cudaError_t synchronize();
  void end_after_work();

  const int device;
  std::shared_ptr<CUgraph_st> recorded;  // Of the thread that captures.

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;
  bool runs_ = false;  // Of most streams that LibTorch makes nobody hears again.
  bool ending_ = false;
};

struct CUevent_st {
  CUevent_st(int on, bool timing) : device(on), tells_time(timing) {}

  const int device;
  const bool tells_time;
  struct Place {
    std::mutex mutex;
    std::condition_variable changed;
    bool reached = false;
    std::chrono::steady_clock::time_point at{};  // Of a node: in the last launch.
  };
  std::shared_ptr<Place> place = nullptr;  // Null: not recorded yet, which counts as reached.
  bool captured = false;  // In a graph, and there no node: nobody outside can ask for it.
  std::weak_ptr<CUgraph_st> graph{};   // The one that it was captured in,
  Before before{};                     // and where.
  std::atomic<bool> destroyed{false};  // It stays in place, so that its use can be told of.
};

namespace ddprun::fake_cuda {

// What the device says to everybody from its first fault on, as a real one does.
cudaError_t device_state();

// Of each answer of a call. Who checks a kernel that he launches next is told of an error, if
// nobody has asked before. That work is not done yet is none.
cudaError_t told(cudaError_t answer);

// For each call that looks at, waits for or frees something: it is no part of a graph. `of_device`:
// it concerns all streams, and one of them that is captured can be neither asked nor waited for.
cudaError_t outside_graphs(bool of_device = false);

// The same for a call about one stream, which it spoils in any mode.
cudaError_t outside_graph_of(cudaStream_t stream);

// The current device, which has a context from here on.
int used_device();

// The null stream, and the two constants that stand for it, are one stream of each device.
cudaStream_t real(cudaStream_t stream);

// As cudaFree does: any kernel of the device might use the memory.
void wait_for_device();

}  // namespace ddprun::fake_cuda
