// Meeting, starting calls, and the calls that move no slices.
#include "worker/mpi/mpi_communicator.h"

#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>

#include "rendezvous/counted.h"
#include "worker/communicator_modules.h"
#include "worker/cpu/reduce.h"
#include "worker/declare_failure.h"
#include "worker/peers/call_guard.h"

namespace ddprun::worker {
namespace {

// What each process says before any communicator exists.
struct Introduction {
  int rank = 0;
  int world_size = 1;
  char host[MPI_MAX_PROCESSOR_NAME] = "";
};

std::string who(int rank, int world_size) {
  return "rank " + std::to_string(rank) + " of " + std::to_string(world_size);
}

}  // namespace

MpiCommunicator::MpiCommunicator(const WorkerEnv& env, const CommunicatorOptions& options)
    : runtime_(MpiRuntime::get()),
      rank_(env.rank),
      world_size_(env.world_size),
      timeout_(options.collective_timeout),
      slow_waits_(options),
      sent_(static_cast<std::size_t>(world_size_)),
      received_(static_cast<std::size_t>(world_size_)),
      theirs_(static_cast<std::size_t>(world_size_)),
      departed_(static_cast<std::size_t>(world_size_)) {
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer != rank_) peers_.push_back(peer);
  }
  if (world_size_ > tree_ranks_max) {
    throw CommunicatorError("no MPI communicator of more than " + std::to_string(tree_ranks_max) +
                            " ranks");
  }
  meet(env, Clock::now() + options.connect_timeout);
}

void MpiCommunicator::meet(const WorkerEnv& env, Clock::time_point deadline) {
  const std::lock_guard lock(runtime_.mutex());
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  Introduction mine{env.rank, env.world_size, ""};
  int length = 0;
  MPI_Get_processor_name(mine.host, &length);
  std::vector<Introduction> all(static_cast<std::size_t>(size));
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Request request = MPI_REQUEST_NULL;
  // With a deadline, which the blocking call has not: a process may never make a communicator.
  check_mpi(MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE,
                           MPI_COMM_WORLD, &request),
            "the first exchange over MPI");
  for (int done = 0; done == 0;) {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "the first exchange over MPI");
    if (done == 0 && Clock::now() >= deadline) {
      throw CommunicatorError("not all processes of MPI made a communicator in time");
    }
    if (done == 0) std::this_thread::sleep_for(std::chrono::microseconds{100});
  }
  std::set<int> ranks;
  std::set<std::string> hosts;
  for (const Introduction& one : all) {
    hosts.insert(one.host);
    if (one.world_size != size || !ranks.insert(one.rank).second) {
      throw CommunicatorError("MPI started " + rendezvous::counted(size, "process", "processes") +
                              ", but a worker takes itself for " + who(one.rank, one.world_size) +
                              ": start all workers with mpirun -n " +
                              std::to_string(one.world_size) + ", and leave the ranks to it");
    }
  }
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, 0, env.rank, &comm_), "MPI_Comm_split");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  description_ = "mpi: " + rendezvous::counted(size, "rank") + " on " +
                 rendezvous::counted(std::ssize(hosts), "host") + ", " + runtime_.version();
  listen();
}

MpiCommunicator::~MpiCommunicator() {
  if (std::uncaught_exceptions() > exceptions_before_) {  // As PeerWatch does: no goodbye.
    abort("rank " + std::to_string(rank_) + failure_without_words);
  }
  const auto deadline = Clock::now() + std::chrono::seconds{10};
  try {
    while (!buffered_.empty() && !aborted_ && Clock::now() < deadline) {
      move_buffered();
      std::this_thread::yield();
    }
  } catch (const CommunicatorError&) {  // The peers know.
  }
  // What is still under way keeps its memory for as long as the process lives.
  if (!buffered_.empty()) new std::deque<std::shared_ptr<Message>>(std::move(buffered_));
  const std::lock_guard lock(runtime_.mutex());
  if (!aborted_) tell_all(ControlKind::Goodbye, "");
  if (hearing_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&hearing_);
    MPI_Wait(&hearing_, MPI_STATUS_IGNORE);
  }
  // The communicator itself is not freed: that is a collective call, and the others may be gone.
}

void MpiCommunicator::throw_aborted(const Call& call) {
  const std::lock_guard lock(reason_mutex_);
  throw CommunicatorError(to_string(call) + " failed on rank " + std::to_string(rank_) + ": " +
                          reason_);
}

void MpiCommunicator::fail(const Call& call, const std::string& reason) {
  abort(reason);
  throw_aborted(call);
}

void MpiCommunicator::require(bool condition, const Call& call, const std::string& problem) {
  if (!condition) fail(call, "rank " + std::to_string(rank_) + ": " + problem);
}

MpiCommunicator::Running MpiCommunicator::start(CallKind kind, std::size_t count, DataType type,
                                                std::initializer_list<const void*> pointers,
                                                ReduceOp op, int root) {
  Call call;
  call.kind = kind;
  call.count = count;
  call.type = type;
  call.op = op;
  call.root = root;
  call.sequence = ++calls_;
  if (aborted_) throw_aborted(call);
  require(count <= SIZE_MAX / 16 / static_cast<std::size_t>(world_size_), call,
          "this many elements do not fit any memory");
  require(is_supported(type, op), call, "the average of integers is not an integer: use sum");
  for (const void* pointer : pointers) {
    require(pointer != nullptr || count == 0, call, "the data is a null pointer");
  }
  require(root >= 0 && root < world_size_, call, "there is no such root");
  const Running running{call, Clock::now() + timeout_};
  announce(running);
  return running;
}

void MpiCommunicator::announce(const Running& running) {
  move_buffered();
  Transfers transfers;
  for (const int peer : peers_) {
    post_receive(transfers, &theirs_[static_cast<std::size_t>(peer)], sizeof(Call), peer, call_tag);
    post_send(transfers, &running.call, sizeof(Call), peer, call_tag);
  }
  wait(running, transfers);
  for (const int peer : peers_) {
    const Call& theirs = theirs_[static_cast<std::size_t>(peer)];
    if (theirs != running.call) {
      fail(running.call, describe_mismatch(rank_, running.call, peer, theirs));
    }
  }
}

void MpiCommunicator::barrier(Stream) { start(CallKind::Barrier, 0, DataType::UInt8, {}); }

std::shared_ptr<void> MpiCommunicator::allocate(std::size_t bytes) {
  bytes = std::max<std::size_t>(bytes, 64);
  const Running running = start(CallKind::Allocate, bytes, DataType::UInt8, {});
  const std::size_t rounded = (bytes + 63) / 64 * 64;
  void* memory = std::aligned_alloc(64, rounded);
  require(memory != nullptr, running.call, "no memory is left");
  std::memset(memory, 0, rounded);
  return {memory, [](void* data) { std::free(data); }};
}

}  // namespace ddprun::worker

extern "C" __attribute__((visibility("default"))) ddprun::worker::Communicator*
ddprun_make_mpi_communicator(const ddprun::worker::WorkerEnv* env,
                             const ddprun::worker::CommunicatorOptions* options, char* error,
                             std::size_t error_bytes) {
  return ddprun::worker::make_for_program<ddprun::worker::MpiCommunicator>(*env, *options, error,
                                                                           error_bytes);
}
