// One MPI_Init for the process, and an end that does not wait for ranks that never come.
#include "worker/mpi/mpi_runtime.h"

#include <stdlib.h>
#include <unistd.h>

#include "worker/communicator.h"

namespace ddprun::worker {
namespace {

int owner = 0;  // A forked child must not end the MPI of its parent.

// MPI_Finalize waits for all processes. One that ends with an error must not wait for the others,
// who may be waiting for it: then mpirun sees an end without MPI_Finalize, and ends the job.
void finish(int status, void*) {
  if (status != 0 || ::getpid() != owner) return;
  MpiRuntime::get().end();
}

}  // namespace

MpiRuntime& MpiRuntime::get() {
  static auto* const runtime = new MpiRuntime;
  return *runtime;
}

MpiRuntime::MpiRuntime() {
  int started = 0, provided = 0;
  MPI_Initialized(&started);
  if (started != 0) {  // The program itself uses MPI, and ends it.
    MPI_Query_thread(&provided);
  } else {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided),
              "MPI_Init_thread");
    owner = ::getpid();
    ::on_exit(finish, nullptr);
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    throw CommunicatorError(
        "this MPI may be called by one thread of a process only, but gradients are exchanged by "
        "another thread than computes them: MPI_THREAD_SERIALIZED is needed");
  }
}

// Global objects are destroyed after this: exit() goes back in the order in which things began.
void MpiRuntime::end() {
  int finished = 0;
  MPI_Finalized(&finished);
  if (finished != 0) return;
  {
    const auto lock = this->lock();
    for (const auto& [who, last] : lasts_) last(lock);
  }
  MPI_Finalize();
}

std::string MpiRuntime::version() const {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<std::size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

void check_mpi(int code, const std::string& what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw CommunicatorError(what + ": " + std::string(text, static_cast<std::size_t>(length)));
}

}  // namespace ddprun::worker
