// Opening the modules: where one, or what it needs, is missing, the error must say what and how to
// get it.
#include <cstdlib>
#include <vector>

#include "tests/testing/catch.h"
#include "worker/communicator_modules.h"

using namespace ddprun::worker;

TEST_CASE("a missing CUDA module is named", "[worker][cuda]") {
  ::setenv("DDPRUN_CUDA_MODULE", "/nonexistent/libddprun_cuda.so", 1);
  try {
    make_nccl_communicator(WorkerEnv{});
    FAIL("opened a module that does not exist");
  } catch (const CommunicatorError& error) {
    INFO(error.what());
    CHECK(std::string(error.what()).find("/nonexistent/libddprun_cuda.so does not exist") !=
          std::string::npos);
  }
  ::unsetenv("DDPRUN_CUDA_MODULE");
}

TEST_CASE("a missing MPI module names the command that installs what it needs", "[worker]") {
  ::setenv("DDPRUN_MPI_MODULE", "/nonexistent/libddprun_mpi.so", 1);
  try {
    make_mpi_communicator(WorkerEnv{});
    FAIL("opened a module that does not exist");
  } catch (const CommunicatorError& error) {
    CHECK(std::string(error.what()) ==
          "the MPI module /nonexistent/libddprun_mpi.so does not exist: run scripts/setup --mpi, "
          "which installs Open MPI, and then scripts/build, or name the module in "
          "DDPRUN_MPI_MODULE");
  }
  ::unsetenv("DDPRUN_MPI_MODULE");
}

#if defined(DDPRUN_CUDA_MODULE_PATH)
TEST_CASE("NCCL starts, or says which part of CUDA is missing", "[worker][cuda]") {
  ::setenv("DDPRUN_CUDA_MODULE", DDPRUN_CUDA_MODULE_PATH, 1);
  std::unique_ptr<Communicator> comm;
  try {
    comm = make_nccl_communicator(WorkerEnv{});
  } catch (const CommunicatorError& error) {
    const std::string text = error.what();
    INFO(text);
    REQUIRE((text.find("no CUDA device can be used") != std::string::npos ||
             text.find("the CUDA module cannot be loaded") != std::string::npos));
    DDPRUN_SKIP(text);
  }
  CHECK(comm->is_cuda());
  CHECK(comm->world_size() == 1);
  const auto memory = comm->allocate(1000 * sizeof(float));
  comm->all_reduce(memory.get(), 1000, DataType::Float32, ReduceOp::Average);
  comm->broadcast(memory.get(), 1000, DataType::Float32, 0);
  comm->barrier();
  CHECK_THROWS_AS(comm->all_reduce(memory.get(), 10, DataType::Int32, ReduceOp::Average),
                  CommunicatorError);
  CHECK_THROWS_AS(comm->barrier(), CommunicatorError);
}
#endif
