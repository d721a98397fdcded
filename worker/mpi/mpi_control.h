// What ranks tell each other over MPI beside their transfers: that one gave up, and why, or that it
// left. MPI itself tells neither.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "worker/mpi/mpi_runtime.h"
#include "worker/owning_process.h"
#include "worker/peers/abortable.h"

namespace ddprun::worker {

// All that travels over one MPI communicator.
enum MpiTag : int { control_tag = 1, call_tag, contribution_tag, result_tag, header_tag, data_tag };

class MpiControl final : public Abortable {
 public:
  MpiControl(MpiRuntime& runtime, MPI_Comm comm, int rank, int world_size);
  // Says goodbye to all ranks, unless aborted. A global one has done so before MPI ended.
  ~MpiControl() override;
  // Nothing of MPI may be called: in a forked child, whose MPI this is not, and once MPI has ended,
  // which it does before a global communicator.
  bool is_cut_off() const noexcept;

  void abort(const std::string& reason) noexcept override;

  // Takes in what has come. Nothing comes in by itself: call it whenever transfers are moved.
  void hear(const MpiRuntime::Lock& lock);
  bool departed(int peer) const { return departed_[static_cast<std::size_t>(peer)]; }

 private:
  enum class Kind : int { Abort, Goodbye };
  struct Message {
    Kind kind = Kind::Abort;
    char text[1020] = "";
  };
  void leave(const MpiRuntime::Lock& lock) noexcept;
  void listen(const MpiRuntime::Lock& lock);  // For the next message.
  void tell_all(const MpiRuntime::Lock& lock, Kind kind, const std::string& text) noexcept;

  const OwningProcess owner_;
  MpiRuntime& runtime_;
  MPI_Comm comm_;
  int rank_;
  std::vector<bool> departed_;  // Of the thread that is inside a call.
  Message heard_;               // Where the next message arrives.
  MPI_Request hearing_ = MPI_REQUEST_NULL;
};

}  // namespace ddprun::worker
