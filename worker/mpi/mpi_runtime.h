// MPI of this process: started once, ended at exit, and used by one thread at a time.
#pragma once

#include <mpi.h>

#include <mutex>
#include <string>

namespace ddprun::worker {

class MpiRuntime {
 public:
  // Starts MPI the first time. Throws CommunicatorError when MPI cannot serve several threads.
  static MpiRuntime& get();

  std::mutex& mutex() { return mutex_; }  // Held during every call of MPI.
  std::string version() const;            // "Open MPI v4.1.4"

 private:
  MpiRuntime();
  std::mutex mutex_;
};

// Throws CommunicatorError with `what` and MPI's own words unless `code` is MPI_SUCCESS.
void check_mpi(int code, const std::string& what);

}  // namespace ddprun::worker
