// What one collective over NCCL costs the thread that calls it, in a world of one: from the call to
// its return, when the work is queued. Prints JSON. A goal is 100 us of the host for a whole step.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <vector>

#include "worker/communicator.h"

using namespace ddprun::worker;

namespace {

constexpr int calls = 2000;

double median_us(Communicator& comm, float* data, std::size_t count) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> took;
  for (int call = 0; call < calls; ++call) {
    const auto begun = Clock::now();
    comm.all_reduce(data, count, DataType::Float32, ReduceOp::Average);
    took.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begun).count());
    if (call % 50 == 0) comm.barrier();  // So that no queue of the device fills up.
  }
  std::nth_element(took.begin(), took.begin() + calls / 2, took.end());
  return took[calls / 2];
}

}  // namespace

int main() {
  try {
    const auto comm = make_nccl_communicator(WorkerEnv{});
    const auto memory = comm->allocate(25'000'000);
    auto* const data = static_cast<float*>(memory.get());
    const double small = median_us(*comm, data, 256), bucket = median_us(*comm, data, 6'250'000);
    std::printf("{\"us of the host, 1 KiB\": %.2f, \"us of the host, 25 MB\": %.2f}\n", small,
                bucket);
  } catch (const CommunicatorError& error) {
    std::cerr << "nccl_calls: " << error.what() << "\n";
    return 1;
  }
}
