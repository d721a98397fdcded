// What happens when a rank dies, hangs, leaves or calls something else: every other rank gets an
// error that names it, in time.
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <ctime>
#include <future>

#include "rendezvous/time_text.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/process_state.h"
#include "tests/testing/text.h"
#include "tests/worker/communicator_cluster.h"
#include "worker/peers/awake_time.h"

using namespace ddprun::worker;
using ddprun::rendezvous::epoch_of;
using ddprun::testing::contains;
using Clock = std::chrono::steady_clock;

namespace {

void sum(Communicator& comm, std::size_t count) {
  std::vector<float> data(count, 1.0f);
  comm.all_reduce(data.data(), count, DataType::Float32, ReduceOp::Sum);
}

// What forked ranks tell their parent.
struct Notes {
  std::atomic<int> rounds;
  std::atomic<std::int64_t> failed_ns[8];
  char error[8][2048];
};

Notes* shared_notes() {
  void* memory =
      ::mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  return static_cast<Notes*>(memory);
}

std::int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

// Forks ranks that reduce until an error ends them; returns their process ids.
std::vector<pid_t> fork_ranks(const Cluster& cluster, Notes* notes, std::size_t count) {
  const auto board = MappedExchange::create(cluster.world);
  std::vector<pid_t> children;
  for (int rank = 0; rank < cluster.world; ++rank) {
    const pid_t child = ::fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // A failed test may leave it stopped.
    try {
      const auto comm = connect_rank(cluster, rank, board);
      const auto memory = comm->allocate(count * sizeof(float));
      for (;;) {
        comm->all_reduce(memory.get(), count, DataType::Float32, ReduceOp::Sum);
        if (rank == 0) ++notes->rounds;
      }
    } catch (const CommunicatorError& error) {
      notes->failed_ns[rank] = now_ns();
      std::snprintf(notes->error[rank], sizeof(notes->error[rank]), "%s", error.what());
    }
    ::_exit(0);
  }
  return children;
}

void wait_for_rounds(const Notes* notes, int rounds) {
  const auto deadline = Clock::now() + ddprun::testing::patience(std::chrono::seconds{30});
  while (notes->rounds < rounds && Clock::now() < deadline) std::this_thread::yield();
  INFO(notes->error[0] << notes->error[1]);
  REQUIRE(notes->rounds >= rounds);
}

void reap(const std::vector<pid_t>& children) {
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
}

}  // namespace

TEST_CASE("a rank killed in the middle of all_reduce is named by all others within a second",
          "[worker][communicator][any-device]") {
  for (const Wiring wiring : wirings) {
    for (const std::size_t count : {100, 500'000}) {
      Notes* notes = shared_notes();
      const auto children =
          fork_ranks({.world = 3, .wiring = wiring, .chunk_bytes = 1 << 20}, notes, count);
      wait_for_rounds(notes, 20);

      const std::int64_t killed_ns = now_ns();
      ::kill(children[1], SIGKILL);
      reap(children);

      for (const int rank : {0, 2}) {
        INFO(name_of(wiring) << ", " << count << " elements, rank " << rank << ": "
                             << notes->error[rank]);
        CHECK(contains(notes->error[rank], "rank 1"));
        CHECK(contains(notes->error[rank], "is gone"));
        CHECK((notes->failed_ns[rank] - killed_ns) / 1'000'000 <
              ddprun::testing::patience(std::chrono::seconds{1}).count());
      }
      ::munmap(notes, sizeof(Notes));
    }
  }
}

TEST_CASE("a stopped rank ends the call of all others by the timeout, with its name",
          "[worker][communicator][any-device]") {
  for (const Wiring wiring : wirings) {
    // Enough for the rounds before on a busy machine: nobody else may be late.
    const auto timeout = ddprun::testing::patience(std::chrono::milliseconds{400});
    Notes* notes = shared_notes();
    const auto children =
        fork_ranks({.world = 3, .wiring = wiring, .collective_timeout = timeout}, notes, 1000);
    wait_for_rounds(notes, 20);

    ::kill(children[1], SIGSTOP);
    ::waitpid(children[0], nullptr, 0);
    ::waitpid(children[2], nullptr, 0);
    ::kill(children[1], SIGKILL);
    ::waitpid(children[1], nullptr, 0);

    for (const int rank : {0, 2}) {
      INFO(name_of(wiring) << ": " << notes->error[rank]);
      CHECK(contains(notes->error[rank],
                     "timed out after " + ddprun::rendezvous::time_text(timeout)));
      CHECK(contains(notes->error[rank], ": rank 1 did not answer"));
    }
    ::munmap(notes, sizeof(Notes));
  }
}

TEST_CASE("ranks that are halted together for longer than a call may take go on",
          "[worker][communicator][any-device]") {
  const auto timeout = ddprun::testing::patience(std::chrono::seconds{2});
  struct Job {
    Notes* notes;
    std::vector<pid_t> ranks;
  };
  std::vector<Job> jobs;
  for (const Wiring wiring : wirings) {
    Notes* notes = shared_notes();
    const Cluster cluster{.wiring = wiring, .collective_timeout = timeout};
    jobs.push_back({notes, fork_ranks(cluster, notes, 1000)});
    wait_for_rounds(notes, 20);
    // Rank 0 is to be halted while it waits.
    ::kill(jobs.back().ranks[1], SIGSTOP);
    ::waitpid(jobs.back().ranks[1], nullptr, WUNTRACED);
    while (ddprun::testing::process_state(jobs.back().ranks[0]) != 'S') std::this_thread::yield();
    ::kill(jobs.back().ranks[0], SIGSTOP);
  }
  std::this_thread::sleep_for(timeout + AwakeTime::halt_min);
  for (const Job& job : jobs) {
    const int rounds = job.notes->rounds;
    for (const pid_t rank : job.ranks) ::kill(rank, SIGCONT);
    wait_for_rounds(job.notes, rounds + 20);
    for (const pid_t rank : job.ranks) ::kill(rank, SIGKILL);
    reap(job.ranks);
    ::munmap(job.notes, sizeof(Notes));
  }
}

TEST_CASE("a rank that is busy elsewhere is named when the others time out",
          "[worker][communicator][any-device]") {
  for (const Wiring wiring : wirings) {
    const Cluster cluster{
        .world = 3,
        .wiring = wiring,
        .collective_timeout = ddprun::testing::patience(std::chrono::milliseconds{200})};
    std::counting_semaphore<> failed(0);
    const auto errors = spawn(cluster, [&](Communicator& comm) {
      comm.barrier();
      if (comm.rank() == 1) {
        acquire(failed, 2);
        return;
      }
      try {
        sum(comm, 5000);
      } catch (...) {
        failed.release();
        throw;
      }
    });
    for (const int rank : {0, 2}) {
      INFO(name_of(wiring) << ": " << errors[static_cast<std::size_t>(rank)]);
      CHECK(contains(errors[static_cast<std::size_t>(rank)], ": rank 1 did not call it"));
    }
  }
}

TEST_CASE("a timeout is blamed on the end of the chain of waiting ranks",
          "[worker][communicator]") {
  const RankSet r0{0}, r1{1}, r2{2}, r3{3};
  const std::optional<RankSet> none;

  const Blame stopped = find_blame(0, r2, {none, none, r1, r2});
  CHECK(stopped.silent == r1);
  CHECK((stopped.absent | stopped.circular).empty());

  const Blame busy = find_blame(0, r2 | r3, {none, RankSet{}, r1, r1 | r2});
  CHECK(busy.absent == r1);
  CHECK((busy.silent | busy.circular).empty());

  const Blame ring = find_blame(0, r1, {none, r2, r0 | r1, r0});
  CHECK(ring.circular == r1);
  CHECK((ring.silent | ring.absent).empty());

  CHECK(to_string(Blame{r1 | r3, r2, {}}) ==
        "rank 1, rank 3 did not answer (stopped, or cut off from the others); "
        "rank 2 did not call it (busy elsewhere, or made fewer calls)");
}

TEST_CASE("abort from another thread ends a blocked call on every rank",
          "[worker][communicator][any-device]") {
  for (const Wiring wiring : wirings) {
    std::counting_semaphore<> failed(0);
    const auto errors = spawn({.world = 3, .wiring = wiring}, [&](Communicator& comm) {
      try {
        comm.barrier();          // All have met; over NCCL one may still be on its way out of this.
        if (comm.rank() == 2) {  // Does not take part, so that the others block.
          std::thread([&] { comm.abort("the user pressed stop"); }).join();
          acquire(failed, 2);
        }
        sum(comm, 5000);
      } catch (...) {
        failed.release();
        throw;
      }
    });
    for (const std::string& error : errors) {
      INFO(name_of(wiring) << ": " << error);
      CHECK(contains(error, "the user pressed stop"));
    }
  }
}

TEST_CASE("different calls are an error that says who called what", "[worker][communicator]") {
  const std::vector<std::pair<std::string, std::function<void(Communicator&)>>> others{
      {"barrier()", [](Communicator& comm) { comm.barrier(); }},
      {"all_reduce(count=99, float32, sum)", [](Communicator& comm) { sum(comm, 99); }},
      {"all_reduce(count=100, int32, sum)",
       [](Communicator& comm) {
         std::vector<std::int32_t> data(100);
         comm.all_reduce(data.data(), 100, DataType::Int32, ReduceOp::Sum);
       }},
      {"all_reduce(count=100, float32, max)",
       [](Communicator& comm) {
         std::vector<float> data(100);
         comm.all_reduce(data.data(), 100, DataType::Float32, ReduceOp::Max);
       }},
  };
  for (const Wiring wiring : {Wiring::SharedMemory, Wiring::Tcp}) {
    for (const auto& [name, other] : others) {
      const auto errors =
          spawn({.world = 2, .wiring = wiring}, [&, call = other](Communicator& comm) {
            sum(comm, 10);
            comm.rank() == 0 ? sum(comm, 100) : call(comm);
          });
      for (const std::string& error : errors) {
        INFO(name_of(wiring) << ": " << error);
        CHECK(contains(error, "rank 0 called all_reduce(count=100, float32, sum), call 2") |
              contains(error, "but rank 0 called all_reduce(count=100, float32, sum), call 2"));
        CHECK(contains(error, "rank 1 called " + name + ", call 2"));
      }
    }
  }
}

TEST_CASE("a rank that leaves early is named", "[worker][communicator]") {
  for (const Wiring wiring : wirings) {
    const auto errors = spawn({.world = 3, .wiring = wiring}, [&](Communicator& comm) {
      comm.barrier();
      if (comm.rank() != 1) sum(comm, 1000);
    });
    for (const int rank : {0, 2}) {
      INFO(name_of(wiring) << ": " << errors[static_cast<std::size_t>(rank)]);
      CHECK(contains(errors[static_cast<std::size_t>(rank)], "rank 1 closed the communicator"));
    }
  }
}

TEST_CASE("bad arguments fail on all ranks instead of hanging",
          "[worker][communicator][any-device]") {
  const auto errors = spawn({.world = 2}, [&](Communicator& comm) {
    std::vector<std::int32_t> data(10);
    const ReduceOp op = comm.rank() == 0 ? ReduceOp::Average : ReduceOp::Sum;
    comm.all_reduce(data.data(), 10, DataType::Int32, op);
  });
  for (const std::string& error : errors) CHECK(contains(error, "rank 0: the average of integers"));

  const auto null = spawn({.world = 2}, [&](Communicator& comm) {
    comm.all_reduce(nullptr, 10, DataType::Float32, ReduceOp::Sum);
  });
  for (const std::string& error : null) CHECK(contains(error, "null pointer"));
}

TEST_CASE("a rank that never comes is named when the others connect", "[worker][communicator]") {
  const auto board = MappedExchange::create(2);
  MappedExchange exchange(board, 0);
  CpuCommunicatorOptions options;
  options.common.connect_timeout = std::chrono::milliseconds{100};
  try {
    connect_cpu_communicator(0, 2, 0, exchange, options);
    FAIL("connected to a rank that does not exist");
  } catch (const CommunicatorError& error) {
    CHECK(contains(error.what(), "rank 1"));
  }
  CHECK_THROWS_AS(connect_cpu_communicator(2, 2, 0, exchange, options), CommunicatorError);
  CHECK_THROWS_AS(connect_cpu_communicator(0, 1000, 0, exchange, options), CommunicatorError);
}

TEST_CASE("a rank that has no descriptors left says so soon, and waits without spinning",
          "[worker][communicator]") {
  Notes* const notes = shared_notes();
  const auto limit = ddprun::testing::patience(std::chrono::seconds{60});
  auto called = std::make_unique<Mesh>(0, 0, "127.0.0.1");
  std::vector<PeerAddress> addresses(2);
  addresses[0] = {"-", "127.0.0.1", called->port(), called->secret(), {}};
  const pid_t child = ::fork();
  if (child == 0) {
    const int next = ::dup(2);  // The lowest that is free, so that none below the limit is.
    const rlimit none{static_cast<rlim_t>(next), static_cast<rlim_t>(next)};
    ::close(next);
    ::setrlimit(RLIMIT_NOFILE, &none);
    const auto used = std::clock();
    const auto begin = Clock::now();
    try {
      called->connect(addresses, begin + limit);
    } catch (const CommunicatorError& error) {
      std::snprintf(notes->error[0], sizeof(notes->error[0]), "%s", error.what());
    }
    notes->rounds = static_cast<int>((std::clock() - used) * 1000 / CLOCKS_PER_SEC);
    notes->failed_ns[0] = std::chrono::nanoseconds(Clock::now() - begin).count();
    ::_exit(0);
  }
  called.reset();
  Mesh caller(1, 0, "127.0.0.1");
  const auto sockets =
      caller.connect(addresses, Clock::now() + ddprun::testing::patience(std::chrono::seconds{20}));
  reap({child});

  INFO(notes->error[0]);
  CHECK(contains(notes->error[0], "rank 0 still needs rank(s) 1, and connections cannot be "));
  CHECK(
      contains(notes->error[0], "Too many open files (raise the limit of open files, ulimit -n)"));
  INFO(notes->rounds << " ms of CPU");
  CHECK(notes->rounds < 500);
  CHECK(std::chrono::nanoseconds(notes->failed_ns[0]) < limit / 2);
  ::munmap(notes, sizeof(Notes));
}

TEST_CASE("16.1: a frame of an older attempt or term is dropped, a newer one refused",
          "[worker][communicator]") {
  const auto pair = [] {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    return std::pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
  };
  const auto streams = [](Epoch epoch, int rank, UniqueFd peer) {
    std::vector<PeerLink> connections(2);
    connections[static_cast<std::size_t>(1 - rank)] = std::move(peer);
    return PeerStreams(rank, epoch, std::move(connections));
  };
  Call call;
  call.kind = CallKind::AllReduce;
  call.sequence = 5;
  auto [mine, theirs] = pair();
  const UniqueFd same(::dup(theirs.get()));
  // Of one number, so that the term alone tells them apart; the older term's may be the greater.
  const int old_attempt = GENERATE(2, 9);
  PeerStreams receiver = streams(epoch_of(1, 2), 0, std::move(mine));
  PeerStreams old_sender = streams(epoch_of(0, old_attempt), 1, std::move(theirs));
  PeerStreams sender = streams(epoch_of(1, 2), 1, UniqueFd(::dup(same.get())));
  PeerStreams new_sender = streams(epoch_of(2, 2), 1, UniqueFd(::dup(same.get())));

  // All is in this process, and what is sent fits the socket's buffer: each turn must move
  // something.
  const auto carry = [](PeerStreams& one) {
    for (int turn = 0; !one.idle(); ++turn) {
      REQUIRE(turn < 1000);
      REQUIRE(one.progress() != PeerStreams::Progress::Failed);
    }
  };
  std::vector<char> stale(40'000, 's');
  std::vector<char> right(1000, 'r');
  std::vector<char> received(1000);
  old_sender.post_send(0, call, 0, stale.data(), stale.size());
  carry(old_sender);
  sender.post_send(0, call, 0, right.data(), right.size());
  carry(sender);
  receiver.post_receive(1, call, 0, received.data(), received.size());
  carry(receiver);
  CHECK(received == right);
  CHECK(receiver.stale_frames() == 1);

  new_sender.post_send(0, call, 0, right.data(), right.size());
  carry(new_sender);
  receiver.post_receive(1, call, 0, received.data(), received.size());
  while (receiver.progress() == PeerStreams::Progress::Moved) {
  }
  CHECK(contains(receiver.fault().reason,
                 "rank 0 is left over from attempt 2 of term 1: rank 1 is in attempt 2 of term 2"));
}

TEST_CASE("a stranger that calls a rank's port is turned away", "[worker][communicator]") {
  Mesh first(0, 0, "127.0.0.1");
  Mesh second(1, 0, "127.0.0.1");
  std::vector<PeerAddress> addresses(2);
  addresses[0] = {"-", "127.0.0.1", first.port(), first.secret(), {}};
  addresses[1] = {"-", "127.0.0.1", second.port(), second.secret(), {}};
  std::vector<PeerAddress> guessed = addresses;
  guessed[0].secret = std::string(32, '0');
  const auto deadline = Clock::now() + ddprun::testing::patience(std::chrono::seconds{20});

  Mesh stranger(1, 0, "127.0.0.1");
  const auto refused = stranger.connect(guessed, deadline);
  auto real = std::async(std::launch::async, [&] { return second.connect(addresses, deadline); });
  const auto sockets = first.connect(addresses, deadline);
  real.get();

  REQUIRE(sockets[1].data);
  pollfd turned_away{refused[0].data.get(), POLLIN, 0};
  const auto limit = ddprun::testing::patience(std::chrono::seconds{20});
  REQUIRE(::poll(&turned_away, 1, static_cast<int>(limit.count())) == 1);
  char byte = 0;
  CHECK(::recv(refused[0].data.get(), &byte, 1, 0) <= 0);
}
