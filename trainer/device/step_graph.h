// What a step queues on its device, recorded once and then done again by one launch each time.
//
//   make_step_graph(cuda) --> libddprun_cuda.so   step_graph_cuda.cpp: a CUDA graph
//                         --> step_graph.cpp      on a CPU: the work is called again
//
// A replay does with the same memory what was recorded: the work may read only what lies where it
// lay, what it decides on the host it has decided for all replays, and its results are where those
// of the recording are. On a CPU nothing is gained; it is there so that what a step may do
// between and within replays is tested without a GPU.
#pragma once

#include <functional>
#include <memory>

#include "trainer/training_error.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// Must go before the communicator whose collectives it has recorded (communicator.h, replayed()).
class StepGraph {
 public:
  virtual ~StepGraph() = default;
  StepGraph() = default;
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  // Once. Records what `work` queues on the current stream, which must not be the default one, and
  // on those that wait for it and are waited for; none of it is done yet. Memory that the work
  // takes stays the graph's. Throws TrainingError where it cannot be recorded, and what `work`
  // throws.
  virtual void record(std::function<void()> work) = 0;

  // Queues all of it on the current stream. Random numbers are drawn as if the work was called.
  virtual void replay() = 0;
};

// Throws TrainingError where the CUDA module has no graphs.
std::unique_ptr<StepGraph> make_step_graph(torch::Device device);

// What the CUDA module has, in plain C, so that no exception crosses the border of the module.
// Where a call returns false `problem` says why; it has room for graph_problem_bytes.
inline constexpr std::size_t graph_problem_bytes = 1024;
struct CudaGraphs {
  void* (*make)(int device, char* problem);  // Null: it could not be made.
  bool (*begin)(void* graph, char* problem);
  bool (*end)(void* graph, char* problem);
  void (*give_up)(void* graph);  // In the place of end().
  bool (*replay)(void* graph, char* problem);
  void (*destroy)(void* graph);
};
inline constexpr char cuda_graphs_entry[] = "ddprun_cuda_graphs_1";
using CudaGraphsOf = const CudaGraphs*();

}  // namespace ddprun::trainer
