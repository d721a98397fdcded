// A worker that sums with its peers until an error ends it, for tests of what becomes of them: it
// says "summing" once all have met, then the error and how long the call that failed had waited.
//
//   summing_worker [FLOATS]     in each sum; 1
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "worker/communicator.h"

using namespace ddprun::worker;

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point called = Clock::now();
  try {
    // Hosts that are namespaces of one machine could share its memory.
    const CommunicatorOptions options{.slow_wait = std::chrono::seconds{5}, .shared_memory = false};
    const auto communicator = make_cpu_communicator(read_worker_env(), options);
    std::vector<float> ones(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1);
    for (bool told = false;; told = true) {
      ones.assign(ones.size(), 1);
      called = Clock::now();
      communicator->all_reduce(ones.data(), ones.size(), DataType::Float32, ReduceOp::Sum);
      if (!told) std::cout << "summing" << std::endl;
    }
  } catch (const CommunicatorError& error) {
    const auto waited =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - called);
    std::cout << "waited ms: " << waited.count() << "\n" << error.what() << std::endl;
    return 1;
  }
}
