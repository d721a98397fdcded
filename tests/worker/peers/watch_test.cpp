// Where the watch of the peers itself comes to an end: in a forked child, which has a copy of it
// without its thread, and by an error of the kernel.
#include "worker/peers/watch.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <functional>
#include <memory>
#include <semaphore>
#include <string>
#include <vector>

#include "tests/testing/catch.h"
#include "tests/testing/failing_call.h"
#include "tests/testing/patience.h"
#include "tests/testing/text.h"
#include "tests/worker/communicator_cluster.h"

using namespace ddprun::worker;
using namespace std::chrono_literals;
using ddprun::testing::contains;
using ddprun::testing::patience;

namespace {

constexpr std::size_t text_bytes = 2048;

// What went wrong in each of two ranks that are processes.
std::vector<std::string> errors_of_processes(
    const Cluster& cluster, const std::function<void(std::unique_ptr<Communicator>&)>& body) {
  void* const memory =
      ::mmap(nullptr, 2 * text_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  char* const texts = static_cast<char*>(memory);
  const auto board = MappedExchange::create(2);
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    try {
      auto communicator = connect_rank(cluster, rank, board);
      body(communicator);
    } catch (const std::exception& error) {
      std::snprintf(texts + static_cast<std::size_t>(rank) * text_bytes, text_bytes, "%s",
                    error.what());
    }
    ::_exit(0);
  }
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  std::vector<std::string> errors{texts, texts + text_bytes};
  ::munmap(memory, 2 * text_bytes);
  return errors;
}

// How a child ends that does `last` and nothing else.
int status_of_child(const std::function<void()>& last) {
  const pid_t child = ::fork();
  if (child == 0) {
    // Or it might wait for a thread that only its parent has.
    ::alarm(static_cast<unsigned>(patience(20s).count() / 1000));
    last();
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace

TEST_CASE("a forked child that destroys a communicator leaves its parent's job alone",
          "[worker][communicator]") {
  for (const Wiring wiring : {Wiring::SharedMemory, Wiring::Tcp}) {
    const auto errors = errors_of_processes(
        {.world = 2, .wiring = wiring}, [](std::unique_ptr<Communicator>& comm) {
          constexpr std::size_t count = 1000;
          auto memory = comm->allocate(count * sizeof(float));
          comm->barrier();
          if (comm->rank() == 1) {
            const int status = status_of_child([&] {
              comm->abort("of no concern to the parent");
              memory.reset();
              comm.reset();
            });
            if (status != 0) throw std::logic_error("its end: " + std::to_string(status));
          }
          comm->barrier();
          // The next allocation is where peers let go of what was released.
          const auto more = comm->allocate(count * sizeof(float));
          for (int round = 0; round < 20; ++round) {
            comm->all_reduce(memory.get(), count, DataType::Float32, ReduceOp::Sum);
          }
          // The parent's own thread still hears its peer.
          if (comm->rank() == 0) comm->abort("enough");
          comm->barrier();
        });
    for (const std::string& error : errors) {
      INFO(name_of(wiring) << ": " << error);
      // Whichever call it ends: the other rank may not be through the last sum yet.
      CHECK(contains(error, ": enough"));
    }
  }
}

TEST_CASE("a failure that nobody tells is told after its time, though this rank makes no call",
          "[worker][communicator]") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  std::vector<PeerWatch::Peer> of_rank_0(2), of_rank_1(2);
  of_rank_0[1] = {PeerLink(ddprun::rendezvous::UniqueFd(ends[0])), "rank 1"};
  of_rank_1[0] = {PeerLink(ddprun::rendezvous::UniqueFd(ends[1])), "rank 0"};
  std::counting_semaphore<> woken(0);
  PeerWatch watch_0(std::move(of_rank_0), [&] { woken.release(); });
  PeerWatch watch_1(std::move(of_rank_1), [] {});

  watch_1.abort_unless_told("rank 1 failed: somehow", 1ms);

  CHECK(acquire(woken, 1));
  CHECK(watch_0.reason() == "rank 1 failed: somehow");
}

TEST_CASE("a watch that cannot wait for its peers any more ends the calls, with the reason",
          "[worker][communicator]") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  const ddprun::rendezvous::UniqueFd peer(ends[1]);
  std::vector<PeerWatch::Peer> peers(2);
  peers[1] = {PeerLink(ddprun::rendezvous::UniqueFd(ends[0])), "rank 1"};
  std::string reason;
  // Where the kernel has no poll, the library calls ppoll.
  std::vector<ddprun::testing::FailingCall> polls{{.number = __NR_ppoll}};
#ifdef __NR_poll
  polls.push_back({.number = __NR_poll});
#endif
  const bool filtered = ddprun::testing::with_failing_calls(polls, EINVAL, [&] {
    std::counting_semaphore<> woken(0);
    PeerWatch watch(std::move(peers), [&] { woken.release(); });
    acquire(woken, 1);
    reason = watch.reason();
  });
  if (!filtered) DDPRUN_SKIP("no seccomp filters here");
  CHECK(reason ==
        "rank 0 cannot watch its peers any more: poll of 3 descriptors: Invalid argument (raise "
        "the limit of open files, ulimit -n)");
}
