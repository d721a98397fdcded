// MPI of this process: started once, ended at exit, and used by one thread at a time.
#pragma once

#include <mpi.h>

#include <functional>
#include <map>
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

  // What `who`, which lives longer than MPI does where it is global, has to do before MPI ends: it
  // is called then, unless it was forgotten before.
  void at_end(const void* who, std::function<void(const Lock&)> last) {
    lasts_[who] = std::move(last);
  }
  void forget(const void* who) { lasts_.erase(who); }
  void end();  // MPI_Finalize, unless the program has called it.

 private:
  MpiRuntime();
  std::mutex mutex_;
  std::map<const void*, std::function<void(const Lock&)>> lasts_;
};

// Throws CommunicatorError with `what` and MPI's own words unless `code` is MPI_SUCCESS.
void check_mpi(int code, const std::string& what);

}  // namespace ddprun::worker
