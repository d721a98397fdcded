// Trains a ResNet on one or many workers; see trainer/train_loop.cpp.
#include <cstdio>
#include <cstdlib>

#include "command_line/standard_streams.h"
#include "trainer/report/steady_output.h"
#include "trainer/run_train.h"

namespace {

// Whether the end of the process finds what a checker has to say.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool is_checked = true;
#else
constexpr bool is_checked = false;
#endif

}  // namespace

int main(int argc, char** argv) {
  using namespace ddprun;
  command_line::fill_closed_streams();
  // For ever: a thread may have something to say until the process is gone.
  static auto& console = *new trainer::SteadyConsole;
  const int status = trainer::run_train(argc, argv);
  console.finish();
  // The destructors of LibTorch's globals take 150 ms on a small machine, and the next attempt of a
  // job begins when the last worker of this one is gone. What is ours was closed in run_train();
  // MPI is not finalized after an error anyway (worker/mpi/mpi_runtime.cpp).
  if (status != 0 && !is_checked) {
    std::fflush(nullptr);
    std::_Exit(status);
  }
  return status;
}
