// What is refused, what is waited for, and how work that cannot end is ended on all ranks.
#include "worker/nccl/nccl_communicator.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <thread>
#include <utility>

#include "tests/testing/catch.h"
#include "tests/testing/mapped_exchange.h"
#include "tests/testing/text.h"
#include "tests/worker/nccl/fake_device.h"
#include "tests/worker/own_page.h"
#include "worker/communicator_modules.h"

extern "C" ddprun::worker::MakeModuleCommunicator ddprun_make_nccl_communicator_3;

using namespace ddprun::worker;
using ddprun::testing::contains;
using namespace std::chrono_literals;
using ddprun::testing::device;
using ddprun::testing::FakeDevice;
using ddprun::testing::Happening;
using ddprun::testing::patience;

namespace {

template <typename Function>
std::string error_of(Function function) {
  return ddprun::testing::message_of<CommunicatorError>(function);
}

const WorkerEnv env_of_one;

// A world of one on the fake device.
struct Lone {
  Lone() {
    device = &fake;
    fake.on_abort = [this] { aborted.happen(); };
  }
  ~Lone() { fake.end_work(); }
  NcclCommunicator& communicator() {
    if (!made) made = std::make_unique<NcclCommunicator>(WorkerEnv{}, options);
    return *made;
  }
  std::string all_reduce() {
    return error_of([this] {
      communicator().all_reduce(data.data(), 4, DataType::Float32, ReduceOp::Sum, nullptr);
    });
  }

  FakeDevice fake;
  Happening aborted;
  CommunicatorOptions options;
  std::array<float, 4> data{};
  std::unique_ptr<NcclCommunicator> made;
};

}  // namespace

TEST_CASE("calls over NCCL are refused as those over CPU and MPI are", "[worker][cuda]") {
  Lone job;
  CHECK(job.all_reduce().empty());
  CHECK(
      error_of([&] {
        job.communicator().all_gather(nullptr, job.data.data(), 4, DataType::Float32, nullptr);
      }) ==
      "all_gather(count=4, float32), call 2 failed on rank 0: rank 0: the data is a null pointer");
  CHECK(job.fake.called == std::vector<std::string>{"all_reduce"});
  CHECK(job.aborted.wait());  // The others would wait for this rank.
  CHECK(contains(job.all_reduce(), "call 3 failed on rank 0: rank 0: the data is a null pointer"));
}

TEST_CASE("a message to a rank that there is not is an error of its own", "[worker][cuda]") {
  Lone job;
  CHECK(contains(
      error_of([&] { job.communicator().send(job.data.data(), 4, DataType::Float32, 1, nullptr); }),
      "send: there is no other rank 1 among 1"));
  CHECK(job.all_reduce().empty());
  CHECK_FALSE(job.aborted.has_happened());
}

TEST_CASE("work that the device does not end in time is aborted, and later calls say which",
          "[worker][cuda]") {
  Lone job;
  job.options.collective_timeout = 1ms;
  REQUIRE(job.all_reduce().empty());
  CHECK(job.aborted.wait());
  const std::string error = job.all_reduce();
  INFO(error);
  CHECK(contains(error,
                 "rank 0: all_reduce(count=4, float32, sum), call 1 on the device timed out "
                 "after 1 ms"));
  CHECK(job.fake.called.size() == 1);
}

TEST_CASE("an error that NCCL finds in the background ends the communicator", "[worker][cuda]") {
  Lone job;
  job.communicator();
  job.fake.nccl_result = ncclRemoteError;
  CHECK(job.aborted.wait());
  CHECK(contains(job.all_reduce(), "rank 0: a word of NCCL: and why"));
}

TEST_CASE("a call that NCCL goes on with in the background is waited for", "[worker][cuda]") {
  Lone job;
  job.fake.nccl_looks = 3;
  job.communicator();  // Connecting is such a call, too.
  CHECK(job.fake.nccl_looks <= 0);
  job.fake.nccl_looks = 3;
  CHECK(job.all_reduce().empty());
  CHECK(job.fake.nccl_looks <= 0);
}

TEST_CASE("a rank that starts NCCL says that it waits for others", "[worker][cuda]") {
  const ddprun::testing::OwnPage page;
  Lone job;
  job.options.connect_timeout = patience(60s);
  job.fake.nccl_looks = 1'000'000'000;
  std::thread starts([&] { job.communicator(); });
  CHECK(page.comes_to_tell_of_a_wait());
  job.fake.nccl_looks = 0;
  starts.join();
  CHECK_FALSE(page.tells_of_a_wait());
}

TEST_CASE("NCCL that does not connect in time is ended with the error", "[worker][cuda]") {
  Lone job;
  job.options.connect_timeout = 1ms;
  job.fake.nccl_looks = 1'000'000;
  CHECK(error_of([&] { job.communicator(); }) ==
        "NCCL could not be started on rank 0: rank 0: ncclCommInitRankConfig did not end in time");
  CHECK(job.aborted.wait());
}

TEST_CASE("a barrier waits for the stream, and fails with it", "[worker][cuda]") {
  Lone job;
  job.fake.stream_looks = 3;
  job.communicator().barrier(nullptr);
  CHECK(job.fake.stream_looks == 0);
  CHECK(job.fake.called == std::vector<std::string>{"all_reduce"});

  job.fake.stream_result = cudaErrorIllegalAddress;
  CHECK(error_of([&] { job.communicator().barrier(nullptr); }) ==
        "barrier(), call 2 failed on rank 0: rank 0: barrier(), call 2 failed: an illegal memory "
        "access was encountered");
}

TEST_CASE("what the host gathers goes by way of the device's memory", "[worker][cuda]") {
  Lone job;
  const std::int64_t own[] = {41, 3};
  std::int64_t all[2] = {};
  job.communicator().all_gather_on_host(own, all, sizeof own, nullptr);
  CHECK(job.fake.called == std::vector<std::string>{"all_gather"});
  CHECK(job.fake.gathered != own);
  CHECK(all[0] == 41);
  CHECK(all[1] == 3);
}

TEST_CASE("what is recorded into a graph is watched from each replay on", "[worker][cuda]") {
  Lone job;
  job.fake.capturing = true;
  CHECK(job.all_reduce().empty());
  CHECK(job.fake.called.size() == 1);
  CHECK(job.fake.recorded.empty());
  job.fake.capturing = false;
  job.communicator().replayed(nullptr);
  job.communicator().replayed(nullptr);
  CHECK(job.fake.recorded.size() == 2);
}

TEST_CASE("the watchdog spoils no graph that is recorded while it looks", "[worker][cuda]") {
  Lone job;
  CHECK(job.all_reduce().empty());
  job.fake.capturing = true;
  CHECK(job.fake.looked_twice.wait());
  CHECK_FALSE(job.communicator().aborted());
  job.fake.capturing = false;
}

TEST_CASE("without a device of one's own there is that of the local rank", "[worker][cuda]") {
  Lone job;
  job.fake.devices = 2;
  WorkerEnv env;
  for (const int local_rank : {0, 1, 2, 3}) {
    env.local_rank = local_rank;
    CHECK(NcclCommunicator(env, job.options).cuda_device() == local_rank % 2);
  }
  job.options.cuda_device = 0;
  CHECK(NcclCommunicator(env, job.options).cuda_device() == 0);
}

TEST_CASE("the longest timeout that there is has room on the clock", "[worker][cuda]") {
  Lone job;
  job.options.collective_timeout = std::chrono::milliseconds::max();
  job.options.connect_timeout = std::chrono::milliseconds::max();
  job.options.slow_wait = std::chrono::milliseconds::max();
  job.fake.nccl_looks = 3;
  std::array<char, 200> error{};
  job.made.reset(static_cast<NcclCommunicator*>(
      ddprun_make_nccl_communicator_3(&env_of_one, &job.options, error.data(), error.size())));
  INFO(error.data());
  REQUIRE(job.made);
  job.fake.nccl_looks = 3;
  CHECK(job.all_reduce().empty());
}

TEST_CASE("at the end NCCL is aborted before memory is given back", "[worker][cuda]") {
  Lone job;
  bool freed_after_abort = false;
  job.fake.on_free = [&] { freed_after_abort = job.aborted.has_happened(); };
  job.communicator().abort("enough");
  job.made.reset();
  CHECK(freed_after_abort);
}

TEST_CASE("a device that there is not is said before the others are met", "[worker][cuda]") {
  Lone job;
  job.fake.devices = 2;
  job.options.cuda_device = 2;
  MappedExchange nobody(MappedExchange::create(2), 0);
  CHECK(error_of([&] { connect_nccl_peers(0, 2, 0, nobody, job.options); }) ==
        "there is no CUDA device 2: this host has 2");
}

TEST_CASE("what one rank gives up with ends NCCL on all", "[worker][cuda]") {
  FakeDevice fake;
  device = &fake;
  std::atomic<int> aborts{0};
  Happening both;
  fake.on_abort = [&] {
    if (++aborts == 2) both.happen();
  };
  const auto board = MappedExchange::create(2);
  std::array<std::string, 2> errors;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      CommunicatorOptions options;
      options.connect_timeout = patience(20s);
      MappedExchange exchange(board, rank);
      errors[static_cast<std::size_t>(rank)] = error_of([&] {
        NcclCommunicator communicator(connect_nccl_peers(rank, 2, 0, exchange, options), options);
        if (rank == 1) communicator.abort("rank 1 has had enough");
        both.wait();
        communicator.barrier(nullptr);
      });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(aborts == 2);
  for (const std::string& error : errors) CHECK(contains(error, "rank 1 has had enough"));
}

namespace {

// Rank 0 of two; what rank 1 says and hears goes through `peer`.
NcclPeers with_peer(ddprun::rendezvous::UniqueFd& peer) {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  peer = ddprun::rendezvous::UniqueFd(ends[1]);
  NcclPeers peers;
  peers.world_size = 2;
  peers.deadline = std::chrono::steady_clock::now() + patience(20s);
  peers.watched.resize(2);
  peers.watched[1] = {PeerLink(ddprun::rendezvous::UniqueFd(ends[0])), "rank 1"};
  return peers;
}

// As worker/peers/watch.cpp sends it.
std::string abort_message(const std::string& reason) {
  const std::uint32_t header[] = {0x57504444, 2, static_cast<std::uint32_t>(reason.size())};
  return std::string(reinterpret_cast<const char*>(header), sizeof header) + reason;
}

}  // namespace

TEST_CASE("NCCL is aborted once the peers know of it, whose kernels it would end early",
          "[worker][cuda]") {
  using Clock = std::chrono::steady_clock;
  FakeDevice fake;
  device = &fake;
  Happening aborted;
  fake.on_abort = [&] { aborted.happen(); };
  ddprun::rendezvous::UniqueFd peer;
  NcclCommunicator communicator(with_peer(peer), {});
  const auto begun = Clock::now();
  communicator.abort("enough");

  // Long enough for an abort that waits for nobody, and far from the end of what is waited.
  while (!aborted.has_happened() && Clock::now() < begun + knowing_time / 5) {
    std::this_thread::yield();
  }
  const bool too_early = aborted.has_happened() && Clock::now() < begun + knowing_time;
  CHECK_FALSE(too_early);
  const std::string answer = abort_message("enough");
  REQUIRE(::send(peer.get(), answer.data(), answer.size(), MSG_NOSIGNAL) > 0);
  CHECK(aborted.wait());
}

TEST_CASE("a peer that says nothing of an abort holds it up for a second at most",
          "[worker][cuda]") {
  FakeDevice fake;
  device = &fake;
  Happening aborted;
  fake.on_abort = [&] { aborted.happen(); };
  ddprun::rendezvous::UniqueFd peer;
  NcclCommunicator communicator(with_peer(peer), {});
  communicator.abort("enough");
  CHECK(aborted.wait());
}

TEST_CASE("an error that CUDA has from before ends a call on all ranks", "[worker][cuda]") {
  // The others have made the call, and would wait for this rank's until their time is up.
  for (const char* const function :
       {"cudaSetDevice", "cudaStreamIsCapturing", "cudaEventCreate", "cudaEventRecord"}) {
    Lone job;
    job.communicator();
    job.fake.failing = function;
    const std::string expected =
        "rank 0: all_reduce(count=4, float32, sum), call 1 failed: " + std::string(function) +
        ": an illegal memory access was encountered";
    CHECK(job.all_reduce() ==
          "all_reduce(count=4, float32, sum), call 1 failed on rank 0: " + expected);
    CHECK(job.communicator().aborted() == expected);
    job.fake.failing = nullptr;
  }
}

TEST_CASE("an error that CUDA has from before ends a replay, and what the host gathers",
          "[worker][cuda]") {
  for (const char* const function : {"cudaSetDevice", "cudaEventRecord"}) {
    Lone job;
    job.fake.capturing = true;
    REQUIRE(job.all_reduce().empty());
    job.fake.capturing = false;
    job.fake.failing = function;
    CHECK(contains(error_of([&] { job.communicator().replayed(nullptr); }), function));
    CHECK(contains(job.communicator().aborted().value_or("nobody"), function));
    job.fake.failing = nullptr;
  }
  Lone job;
  job.communicator();
  job.fake.failing = "cudaMemcpyAsync";
  int own = 1, all = 0;
  CHECK(contains(
      error_of([&] { job.communicator().all_gather_on_host(&own, &all, sizeof own, nullptr); }),
      "cudaMemcpyAsync: an illegal memory access"));
  CHECK(contains(job.communicator().aborted().value_or("nobody"),
                 "rank 0: all_gather_on_host of 4 bytes failed: cudaMemcpyAsync: "));
  job.fake.failing = nullptr;
}

TEST_CASE("where what the host gathers finds no memory, no error says that others can be made",
          "[worker][cuda]") {
  Lone job;
  job.communicator();
  job.fake.full = true;
  int own = 1, all = 0;
  bool usable = false;
  const std::string error = error_of([&] {
    try {
      job.communicator().all_gather_on_host(&own, &all, sizeof own, nullptr);
    } catch (const OutOfMemory&) {
      usable = true;
      throw;
    }
  });
  INFO(error);
  CHECK(!error.empty());
  CHECK_FALSE(usable);
  CHECK(contains(job.communicator().aborted().value_or("nobody"),
                 "rank 0: all_gather_on_host of 4 bytes failed: "));
  job.fake.full = false;
}

TEST_CASE("a forked child leaves its parent's NCCL alone", "[worker][cuda]") {
  Lone job;
  REQUIRE(job.all_reduce().empty());
  const pid_t child = ::fork();
  if (child == 0) {
    bool touched = false;
    job.fake.on_abort = job.fake.on_free = job.fake.on_synchronize = [&] { touched = true; };
    // Or it might wait for a thread that only its parent has.
    ::alarm(static_cast<unsigned>(patience(20s).count() / 1000));
    job.made.reset();
    ::_exit(touched ? 1 : 0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(job.all_reduce().empty());
  CHECK_FALSE(job.communicator().aborted());
}

TEST_CASE("an average is NCCL's own, in one call on the stream that was given", "[worker][cuda]") {
  Lone job;
  int place = 0;
  const auto stream = reinterpret_cast<cudaStream_t>(&place);
  job.communicator().all_reduce(job.data.data(), 4, DataType::Float32, ReduceOp::Average, stream);
  job.communicator().all_reduce(job.data.data(), 4, DataType::Float32, ReduceOp::Sum, stream);
  CHECK(job.fake.called == std::vector<std::string>{"all_reduce", "all_reduce"});
  CHECK(job.fake.reductions ==
        std::vector<FakeDevice::Reduction>{{ncclAvg, stream}, {ncclSum, stream}});
  CHECK(job.data == std::array<float, 4>{});  // Nothing is divided here.
}
