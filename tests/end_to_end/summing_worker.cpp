// A worker that sums with its peers until an error ends it, for tests of what becomes of them: it
// says "summing" once all have met, then the error and how long the call that failed had waited.
#include <chrono>
#include <iostream>

#include "worker/communicator.h"

using namespace ddprun::worker;

int main() {
  using Clock = std::chrono::steady_clock;
  Clock::time_point called = Clock::now();
  try {
    // Hosts that are namespaces of one machine could share its memory.
    const CommunicatorOptions options{.shared_memory = false};
    const auto communicator = make_cpu_communicator(read_worker_env(), options);
    for (bool told = false;; told = true) {
      float one = 1;
      called = Clock::now();
      communicator->all_reduce(&one, 1, DataType::Float32, ReduceOp::Sum);
      if (!told) std::cout << "summing" << std::endl;
    }
  } catch (const CommunicatorError& error) {
    const auto waited =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - called);
    std::cout << "waited ms: " << waited.count() << "\n" << error.what() << std::endl;
    return 1;
  }
}
