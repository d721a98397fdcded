// The ranks of an MPI communicator, met, as one of them sees them: starting calls, transfers
// between ranks with MPI_Isend and MPI_Irecv, and waiting for them with a deadline and an error
// that names who was late. MPI's own waits have neither.
#pragma once

#include <mpi.h>

#include <chrono>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "worker/communicator.h"
#include "worker/mpi/mpi_control.h"
#include "worker/mpi/mpi_runtime.h"
#include "worker/peers/awake_time.h"
#include "worker/peers/call_guard.h"
#include "worker/peers/slow_wait.h"

namespace ddprun::worker {

class MpiPeers {
 public:
  using Clock = std::chrono::steady_clock;

  // Collective: meets the other ranks. Throws CommunicatorError when MPI and `env` disagree about
  // who this rank is, or not all ranks come in time.
  MpiPeers(const WorkerEnv& env, const CommunicatorOptions& options);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const std::string& description() const { return met_.description; }
  const std::vector<int>& others() const { return others_; }
  CallGuard& guard() { return guard_; }
  MpiControl& control() { return control_; }
  const MpiControl& control() const { return control_; }

  // One call in progress.
  struct Running {
    Call call;
    Clock::time_point deadline;  // Of awake_.
    CallGuard::Inside inside;
  };
  // Begins a collective (CallGuard::begin()), tells all ranks, and compares with what they call.
  Running start(CallKind kind, std::size_t count, DataType type,
                std::initializer_list<const void*> pointers, ReduceOp op = ReduceOp::Sum,
                int root = 0);
  // Goes on with a call that was begun before.
  Running resume(const Call& call);

  // Transfers that have been posted, and with whom. Their memory must stay until they are done.
  struct Transfers {
    std::vector<MPI_Request> requests;
    std::vector<int> peers;
  };
  void post_send(Transfers& to, const void* data, std::size_t bytes, int peer, MpiTag tag);
  void post_receive(Transfers& to, void* data, std::size_t bytes, int peer, MpiTag tag);
  bool advance(const Call& call, Transfers& transfers);     // True: all are done.
  void wait(const Running& running, Transfers& transfers);  // Leaves `transfers` empty.

 private:
  struct Met {
    MPI_Comm comm = MPI_COMM_NULL;
    std::string description;
  };
  struct Slowness {
    Clock::time_point since{};  // When this rank began to yield.
    bool told = false;
  };
  // What the ranks tell each other before a call. MPI writes to it for as long as they are late.
  struct Announcement {
    Call mine;
    std::vector<Call> theirs;  // By rank.
  };
  static Met meet(MpiRuntime& runtime, const WorkerEnv& env, const CommunicatorOptions& options);
  void announce(const Running& running);
  void compare(const Running& running, const Announcement& said);
  // Throws if the call cannot go on. Tells of it, once, when it takes long.
  void check_peers(const Running& running, const Transfers& transfers, Slowness& slowness);
  std::vector<int> late_peers(const Transfers& transfers);
  Clock::time_point now() { return awake_.at(Clock::now()); }

  MpiRuntime& runtime_;
  int rank_;
  int world_size_;
  std::vector<int> others_;
  std::chrono::milliseconds timeout_;
  AwakeTime awake_;
  SlowWaitTeller slow_waits_;
  std::unique_ptr<Announcement> announcement_;  // Kept from call to call; null: to be made.
  // Its MPI communicator is not freed: that is a collective call, and the others may be gone.
  Met met_;
  MpiControl control_;
  CallGuard guard_;
};

}  // namespace ddprun::worker
