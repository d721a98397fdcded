// Meeting under mpirun, and transfers that are polled: MPI wakes nobody.
#include "worker/mpi/mpi_peers.h"

#include <algorithm>
#include <optional>
#include <set>
#include <thread>

#include "rendezvous/counted.h"
#include "rendezvous/environment.h"
#include "rendezvous/parse_number.h"
#include "worker/cpu/reduce.h"
#include "worker/progress_page.h"
#include "worker/wording.h"

namespace ddprun::worker {
namespace {

constexpr std::size_t piece_bytes_max = std::size_t{1} << 30;  // MPI counts in int.
constexpr int polls_before_yield = 200;  // A poll moves data itself; then others need the core.
constexpr auto yield_time = std::chrono::milliseconds{2};
constexpr auto pause = std::chrono::microseconds{50};
// All come to the barrier of a meeting within moments; a process may be swapped out.
constexpr auto barrier_time_min = std::chrono::seconds{1};

// What each process says before any communicator exists.
struct Introduction {
  int rank = 0;
  int world_size = 1;
  char host[MPI_MAX_PROCESSOR_NAME] = "";
};

struct Introductions {
  Introduction mine;
  std::vector<Introduction> all;
};

// Waits with a deadline, which MPI's blocking calls have not: a process may never make a
// communicator.
void finish(MPI_Request& request, const std::string& what, MpiPeers::Clock::time_point deadline,
            const CommunicatorOptions& options) {
  for (int done = 0; done == 0;) {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
    if (done == 0 && MpiPeers::Clock::now() >= deadline) {
      throw CommunicatorError("not all processes of MPI made a communicator " +
                              within_limit(options));
    }
    if (done == 0) std::this_thread::sleep_for(std::chrono::microseconds{100});
  }
}

void exchange(Introductions& both, MpiPeers::Clock::time_point deadline,
              const CommunicatorOptions& options) {
  const WaitForOthers told_of;
  MPI_Request request = MPI_REQUEST_NULL;
  const std::string what = "the first exchange over MPI";
  check_mpi(MPI_Iallgather(&both.mine, sizeof both.mine, MPI_BYTE, both.all.data(),
                           sizeof both.mine, MPI_BYTE, MPI_COMM_WORLD, &request),
            what);
  finish(request, what, deadline, options);
  // A process that gave up has left its introduction to those that come later. Nobody who gave up
  // comes here, so that what follows, which waits without a limit, has all of them.
  check_mpi(MPI_Ibarrier(MPI_COMM_WORLD, &request), what);
  finish(request, what, std::max(deadline, MpiPeers::Clock::now() + barrier_time_min), options);
}

// Why this process gave up a meeting; empty: it did not. What it then left behind on
// MPI_COMM_WORLD would be taken for a part of the next one. Under MpiRuntime's lock.
std::string& failure() {
  static std::string text;
  return text;
}

std::vector<Introduction> introduce(const WorkerEnv& env, int size,
                                    MpiPeers::Clock::time_point deadline,
                                    const CommunicatorOptions& options) {
  if (!failure().empty()) {
    throw CommunicatorError("an earlier meeting of this process over MPI failed (" + failure() +
                            "), and MPI cannot take it back: end the process, so that all of "
                            "them start anew");
  }
  auto both = std::make_unique<Introductions>();
  both->mine.rank = env.rank;
  both->mine.world_size = env.world_size;
  int length = 0;
  MPI_Get_processor_name(both->mine.host, &length);
  both->all.resize(static_cast<std::size_t>(size));
  try {
    exchange(*both, deadline, options);
  } catch (const std::exception& error) {
    static_cast<void>(both.release());  // MPI writes to it when the others come.
    failure() = error.what();
    throw;
  }
  return std::move(both->all);
}

CommunicatorError not_of_mpi(int size, int rank, int world_size) {
  return CommunicatorError("MPI started " + rendezvous::counted(size, "process", "processes") +
                           ", but a worker takes itself for " + rank_of_world(rank, world_size) +
                           ": start all workers with mpirun -n " + std::to_string(world_size) +
                           ", and leave the ranks to it");
}

// Workers of a launcher that mpirun has started have mpirun's variables, all of them those of one
// process, with which MPI_Init of Open MPI crashes. So this is looked at before.
MpiRuntime& runtime_for(const WorkerEnv& env) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const std::string text = rendezvous::environment_variable(name).value_or("");
    const int size = rendezvous::parse_number<int>(text).value_or(0);
    if (size > 0 && size != env.world_size) throw not_of_mpi(size, env.rank, env.world_size);
  }
  return MpiRuntime::get();
}

}  // namespace

MpiPeers::MpiPeers(const WorkerEnv& env, const CommunicatorOptions& options)
    : runtime_(runtime_for(env)),
      rank_(env.rank),
      world_size_(env.world_size),
      timeout_(options.collective_timeout),
      slow_waits_(options),
      met_(meet(runtime_, env, options)),
      control_(runtime_, met_.comm, rank_, world_size_),
      guard_(rank_, world_size_, control_) {
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer != rank_) others_.push_back(peer);
  }
}

MpiPeers::Met MpiPeers::meet(MpiRuntime& runtime, const WorkerEnv& env,
                             const CommunicatorOptions& options) {
  const auto deadline = Clock::now() + options.connect_timeout;
  if (!options.group.empty()) {
    throw CommunicatorError("there is no MPI communicator of some of the ranks (group \"" +
                            options.group + "\"): make one of all, or one over the CPU or NCCL");
  }
  if (env.world_size > tree_ranks_max) {
    throw CommunicatorError("no MPI communicator of more than " + std::to_string(tree_ranks_max) +
                            " ranks");
  }
  const auto lock = runtime.lock();
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  std::set<int> ranks;
  std::set<std::string> hosts;
  for (const Introduction& one : introduce(env, size, deadline, options)) {
    hosts.insert(one.host);
    if (one.world_size != size || !ranks.insert(one.rank).second) {
      throw not_of_mpi(size, one.rank, one.world_size);
    }
  }
  Met met;
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, 0, env.rank, &met.comm), "MPI_Comm_split");
  MPI_Comm_set_errhandler(met.comm, MPI_ERRORS_RETURN);
  met.description = "mpi: " + rendezvous::counted(size, "rank") + " on " +
                    rendezvous::counted(std::ssize(hosts), "host") + ", " + runtime.version();
  return met;
}

MpiPeers::Running MpiPeers::start(CallKind kind, std::size_t count, DataType type,
                                  std::initializer_list<const void*> pointers, ReduceOp op,
                                  int root) {
  const Call call = guard_.begin(kind, count, type, pointers, op, root);
  const auto deadline = now() + timeout_;
  announce({call, deadline, CallGuard::Inside(guard_)});
  return {call, deadline, CallGuard::Inside(guard_)};
}

MpiPeers::Running MpiPeers::resume(const Call& call) {
  return {call, now() + timeout_, CallGuard::Inside(guard_)};
}

void MpiPeers::announce(const Running& running) {
  auto said = std::move(announcement_);
  if (!said) said = std::make_unique<Announcement>();
  said->mine = running.call;
  said->theirs.resize(static_cast<std::size_t>(world_size_));
  try {
    Transfers transfers;
    for (const int peer : others_) {
      post_receive(transfers, &said->theirs[static_cast<std::size_t>(peer)], sizeof(Call), peer,
                   call_tag);
      post_send(transfers, &said->mine, sizeof(Call), peer, call_tag);
    }
    wait(running, transfers);
  } catch (...) {
    static_cast<void>(said.release());  // MPI still reads and writes it.
    throw;
  }
  announcement_ = std::move(said);
  compare(running, *announcement_);
}

void MpiPeers::compare(const Running& running, const Announcement& said) {
  for (const int peer : others_) {
    const Call& theirs = said.theirs[static_cast<std::size_t>(peer)];
    if (theirs != running.call) {
      guard_.fail(running.call, describe_mismatch(rank_, running.call, peer, theirs));
    }
  }
}

void MpiPeers::post_send(Transfers& to, const void* data, std::size_t bytes, int peer, MpiTag tag) {
  const auto lock = runtime_.lock();
  const auto* from = static_cast<const unsigned char*>(data);
  for (std::size_t at = 0; at < bytes; at += piece_bytes_max) {
    const int piece = static_cast<int>(std::min(piece_bytes_max, bytes - at));
    to.peers.push_back(peer);
    check_mpi(MPI_Isend(from + at, piece, MPI_BYTE, peer, tag, met_.comm,
                        &to.requests.emplace_back(MPI_REQUEST_NULL)),
              "sending to rank " + std::to_string(peer));
  }
}

void MpiPeers::post_receive(Transfers& to, void* data, std::size_t bytes, int peer, MpiTag tag) {
  const auto lock = runtime_.lock();
  auto* into = static_cast<unsigned char*>(data);
  for (std::size_t at = 0; at < bytes; at += piece_bytes_max) {
    const int piece = static_cast<int>(std::min(piece_bytes_max, bytes - at));
    to.peers.push_back(peer);
    check_mpi(MPI_Irecv(into + at, piece, MPI_BYTE, peer, tag, met_.comm,
                        &to.requests.emplace_back(MPI_REQUEST_NULL)),
              "receiving from rank " + std::to_string(peer));
  }
}

bool MpiPeers::advance(const Call& call, Transfers& transfers) {
  int done = 0, code = MPI_SUCCESS;
  {
    const auto lock = runtime_.lock();
    control_.hear(lock);
    code = MPI_Testall(static_cast<int>(transfers.requests.size()), transfers.requests.data(),
                       &done, MPI_STATUSES_IGNORE);
  }
  if (code != MPI_SUCCESS)
    guard_.fail(call, "a transfer over MPI failed, error " + std::to_string(code));
  return done != 0;
}

void MpiPeers::wait(const Running& running, Transfers& transfers) {
  Slowness slowness;
  std::optional<WaitForOthers> told_of;
  for (int polls = 0; !advance(running.call, transfers); ++polls) {
    guard_.throw_if_aborted(running.call);
    if (polls < polls_before_yield) continue;
    const auto looked = now();
    if (slowness.since == Clock::time_point{}) slowness.since = looked;
    if (!told_of) told_of.emplace();
    check_peers(running, transfers, slowness);
    if (looked - slowness.since < yield_time) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
    }
  }
  transfers.requests.clear();
  transfers.peers.clear();
}

std::vector<int> MpiPeers::late_peers(const Transfers& transfers) {
  std::set<int> late;  // In order, and each once: pieces of one transfer have the same peer.
  const auto lock = runtime_.lock();
  for (std::size_t i = 0; i < transfers.requests.size(); ++i) {
    int done = 0;
    MPI_Request_get_status(transfers.requests[i], &done, MPI_STATUS_IGNORE);
    if (done == 0) late.insert(transfers.peers[i]);
  }
  return {late.begin(), late.end()};
}

void MpiPeers::check_peers(const Running& running, const Transfers& transfers, Slowness& slowness) {
  const std::vector<int> late = late_peers(transfers);
  for (const int peer : late) {
    if (control_.departed(peer)) {
      guard_.fail(running.call, "rank " + std::to_string(peer) +
                                    " closed the communicator while rank " + std::to_string(rank_) +
                                    " waited in " + to_string(running.call));
    }
  }
  if (late.empty()) return;
  const std::string cause = rank_list(late) + " did not call it, or is stopped";
  const auto looked = now();
  if (slow_waits_.is_due(slowness.since, slowness.told, looked)) {
    slowness.told = true;
    slow_waits_.tell(rank_, looked - slowness.since, to_string(running.call), cause);
  }
  if (looked < running.deadline) return;
  guard_.fail(running.call, slow_waits_.timed_out() + " in " + to_string(running.call) +
                                ", of rank " + std::to_string(rank_) + ": " + cause);
}

}  // namespace ddprun::worker
