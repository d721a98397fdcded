// CUDA graphs by LibTorch's own class, whose allocator keeps the memory that a recording takes, and
// whose generator goes on drawing in replays. Part of the CUDA module.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <exception>

#include "trainer/device/step_graph.h"

namespace ddprun::trainer {
namespace {

struct Graph {
  explicit Graph(c10::DeviceIndex on) : device(on) {}
  const c10::DeviceIndex device;
  at::cuda::CUDAGraph graph;
};

Graph& as_graph(void* graph) { return *static_cast<Graph*>(graph); }

// False, with the error's words in `problem`, if the work throws.
template <typename Work>
bool guarded(char* problem, Work work) {
  try {
    work();
    return true;
  } catch (const c10::Error& error) {
    std::snprintf(problem, graph_problem_bytes, "%s", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::snprintf(problem, graph_problem_bytes, "%s", error.what());
  }
  return false;
}

void* make(int device, char* problem) {
  void* made = nullptr;
  guarded(problem, [&] { made = new Graph(static_cast<c10::DeviceIndex>(device)); });
  return made;
}

bool begin(void* graph, char* problem) {
  return guarded(problem, [&] {
    const c10::cuda::CUDAGuard on(as_graph(graph).device);
    // The graph takes memory of its own for a whole step, as the steps before it did: theirs goes
    // back first, or a batch that fits would not fit twice.
    c10::cuda::device_synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache();
    // Thread-local: backward, loader and NCCL's watchdog ask CUDA on threads of their own, which
    // the other modes forbid while one records.
    as_graph(graph).graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  });
}

bool end(void* graph, char* problem) {
  return guarded(problem, [&] {
    const c10::cuda::CUDAGuard on(as_graph(graph).device);
    as_graph(graph).graph.capture_end();
  });
}

// Whatever is left of the recording ends, so that the stream and the allocator can be used again.
void give_up(void* graph) {
  char ignored[graph_problem_bytes];
  if (end(graph, ignored)) return;
  // It stops before the allocator where CUDA calls the recording invalid.
  guarded(ignored, [&] {
    c10::cuda::CUDACachingAllocator::endAllocateToPool(as_graph(graph).device,
                                                       as_graph(graph).graph.pool());
  });
}

bool replay(void* graph, char* problem) {
  return guarded(problem, [&] {
    const c10::cuda::CUDAGuard on(as_graph(graph).device);
    as_graph(graph).graph.replay();
  });
}

void destroy(void* graph) {
  char ignored[graph_problem_bytes];
  guarded(ignored, [&] {
    const c10::cuda::CUDAGuard on(as_graph(graph).device);
    delete &as_graph(graph);
  });
}

}  // namespace
}  // namespace ddprun::trainer

extern "C" __attribute__((visibility("default"))) const ddprun::trainer::CudaGraphs*
ddprun_cuda_graphs_1() {
  static constexpr ddprun::trainer::CudaGraphs graphs{
      ddprun::trainer::make,    ddprun::trainer::begin,  ddprun::trainer::end,
      ddprun::trainer::give_up, ddprun::trainer::replay, ddprun::trainer::destroy};
  return &graphs;
}
