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

  // Held during every call of MPI; functions that call it for somebody take the lock as a witness.
  using Lock = std::lock_guard<std::mutex>;
  [[nodiscard]] Lock lock() { return Lock(mutex_); }
  std::string version() const;  // "Open MPI v4.1.4"

 private:
  MpiRuntime();
  std::mutex mutex_;
};

// Throws CommunicatorError with `what` and MPI's own words unless `code` is MPI_SUCCESS.
void check_mpi(int code, const std::string& what);

}  // namespace ddprun::worker
