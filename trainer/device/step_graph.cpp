// The two kinds of graphs, and finding the module's, which `train` is not linked to.
#include "trainer/device/step_graph.h"

#include <dlfcn.h>

#include <utility>

#include "worker/communicator_modules.h"

namespace ddprun::trainer {
namespace {

class HostGraph : public StepGraph {
 public:
  void record(std::function<void()> work) override { work_ = std::move(work); }
  void replay() override { work_(); }

 private:
  std::function<void()> work_;
};

const CudaGraphs& cuda_graphs() {
  worker::open_cuda_module();
  void* const entry = ::dlsym(RTLD_DEFAULT, cuda_graphs_entry);
  if (entry == nullptr) {
    throw TrainingError(std::string("the CUDA module has no graphs (no ") + cuda_graphs_entry +
                        " in it): it was built with a LibTorch without CUDA, or is another "
                        "version's; leave --cuda-graph out, or build ddprun with scripts/setup "
                        "--cuda");
  }
  return *reinterpret_cast<CudaGraphsOf*>(entry)();
}

class DeviceGraph : public StepGraph {
 public:
  explicit DeviceGraph(torch::Device device) : calls_(cuda_graphs()) {
    graph_ = calls_.make(device.index(), problem_);
    if (graph_ == nullptr) fail("made");
  }
  ~DeviceGraph() override { calls_.destroy(graph_); }

  void record(std::function<void()> work) override {
    if (!calls_.begin(graph_, problem_)) fail("recorded");
    try {
      work();
    } catch (...) {
      // Before the exception goes on: until then the allocator takes and frees for the recording.
      calls_.give_up(graph_);
      throw;
    }
    if (!calls_.end(graph_, problem_)) fail("recorded");
  }

  void replay() override {
    if (!calls_.replay(graph_, problem_)) fail("replayed");
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw TrainingError(std::string("the step could not be ") + what +
                        " as a CUDA graph: " + problem_ + "; leave --cuda-graph out");
  }

  const CudaGraphs& calls_;
  char problem_[graph_problem_bytes] = "";
  void* graph_ = nullptr;
};

}  // namespace

std::unique_ptr<StepGraph> make_step_graph(torch::Device device) {
  if (device.is_cpu()) return std::make_unique<HostGraph>();
  return std::make_unique<DeviceGraph>(device);
}

}  // namespace ddprun::trainer
