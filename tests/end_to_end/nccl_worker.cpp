// A worker that makes each call of the NCCL module once and looks at what came of it, as long as an
// error does not end it: then it says the error. Its memory is read by the host, so that it runs
// over tests/fake_cuda alone. Its argument is the number of its GPU, the local rank when left out.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>

#include "worker/communicator.h"
#include "worker/error_file.h"

using namespace ddprun::worker;

namespace {

constexpr std::size_t count = 1000;

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
  static void set(float* data, float value) { std::fill_n(data, count, value); }
  void expect(const char* call, const float* data, float value) {
    comm_.barrier();  // Until then it is only queued.
    if (std::count(data, data + count, value) == count) return;
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
