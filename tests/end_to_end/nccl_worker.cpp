// A worker that makes each call of the NCCL module once and looks at what came of it, as long as an
// error does not end it: then it says the error. It runs over tests/fake_cuda and on a GPU, by the
// CUDA runtime that the module has opened. Its argument is the number of its GPU, the local rank
// when left out.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <vector>

#include "worker/communicator.h"
#include "worker/error_file.h"

using namespace ddprun::worker;

namespace {

constexpr std::size_t count = 1000;

// The runtime's functions of these names, of which this program includes no header.
template <typename Function>
Function* of_runtime(const char* name) {
  auto* const found = reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
  if (found == nullptr) throw CommunicatorError(std::string("no ") + name);
  return found;
}

// On the default stream; back when it is done.
void copy_floats(float* to, const float* from, bool to_device) {
  using Copy = int(void*, const void*, std::size_t, int, void*);
  const int kind = to_device ? 1 : 2;  // cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost
  int status = of_runtime<Copy>("cudaMemcpyAsync")(to, from, count * sizeof(float), kind, nullptr);
  if (status == 0) status = of_runtime<int(void*)>("cudaStreamSynchronize")(nullptr);
  if (status != 0) throw CommunicatorError("cudaMemcpyAsync: status " + std::to_string(status));
}

class Calls {
 public:
  explicit Calls(Communicator& comm)
      : comm_(comm),
        world_(static_cast<std::size_t>(comm.world_size())),
        memory_(comm.allocate(2 * world_ * count * sizeof(float))),
        all_(static_cast<float*>(memory_.get())),
        own_(all_ + world_ * count) {}

  void make() {
    const auto rank = static_cast<float>(comm_.rank());
    const auto ranks = static_cast<float>(world_);
    const float sum = ranks * (ranks - 1) / 2;
    set(own_, rank);
    comm_.all_reduce(own_, count, DataType::Float32, ReduceOp::Sum);
    expect("all_reduce", own_, sum);
    set(own_, rank);
    comm_.all_gather(own_, all_, count, DataType::Float32);
    for (std::size_t peer = 0; peer < world_; ++peer) {
      expect("all_gather", all_ + peer * count, static_cast<float>(peer));
    }
    comm_.reduce_scatter(all_, own_, count, DataType::Float32, ReduceOp::Max);
    expect("reduce_scatter", own_, rank);
    comm_.broadcast(own_, count, DataType::Float32, comm_.world_size() - 1);
    expect("broadcast", own_, ranks - 1);
    if (world_ == 1) return;
    set(own_, 10 + rank);
    const int peer = comm_.rank() ^ 1;
    if (comm_.rank() % 2 == 0) comm_.send(own_, count, DataType::Float32, peer);
    comm_.recv(all_, count, DataType::Float32, peer);
    if (comm_.rank() % 2 == 1) comm_.send(own_, count, DataType::Float32, peer);
    expect("send and recv", all_, 10 + static_cast<float>(peer));
  }

 private:
  static void set(float* data, float value) {
    copy_floats(data, std::vector<float>(count, value).data(), /*to_device=*/true);
  }
  void expect(const char* call, const float* data, float value) {
    comm_.barrier();  // Until then it is only queued.
    std::vector<float> found(count);
    copy_floats(found.data(), data, /*to_device=*/false);
    if (std::count(found.begin(), found.end(), value) == count) return;
    throw CommunicatorError(std::string(call) + " gave a wrong result");
  }

  Communicator& comm_;
  const std::size_t world_;
  const std::shared_ptr<void> memory_;
  float* const all_;
  float* const own_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const WorkerEnv env = read_worker_env();
    install_error_handlers(env);
    CommunicatorOptions options;
    options.cuda_device = argc > 1 ? std::atoi(argv[1]) : env.local_rank;
    const auto communicator = make_nccl_communicator(env, options);
    Calls(*communicator).make();
    std::cout << "right: " << communicator->description() << std::endl;
  } catch (const std::exception& error) {
    std::cout << "failed: " << error.what() << std::endl;
    record_error(error.what());
    return 1;
  }
}
