// What NCCL, its library and the device do wrong by themselves, over tests/fake_cuda: each is an
// error in time, in words, on all ranks.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "rendezvous/unique_fd.h"
#include "tests/fake_cuda/contexts.h"
#include "tests/testing/catch.h"
#include "tests/testing/text.h"
#include "tests/worker/communicator_cluster.h"
#include "tests/worker/met_ranks.h"

using namespace ddprun::worker;
using ddprun::testing::contains;
using ddprun::testing::patience;
using namespace std::chrono_literals;

namespace {

// A switch of tests/fake_cuda/switches.h, for as long as it lives.
class Switch {
 public:
  Switch(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~Switch() { ::unsetenv(name_); }
  Switch(const Switch&) = delete;
  Switch& operator=(const Switch&) = delete;

 private:
  const char* name_;
};

// Numbers that a call may still write to when it has thrown: on a device cudaFree would wait for
// that. So they are given back when all tests are over.
class DeviceFloats {
 public:
  explicit DeviceFloats(std::size_t count, float value = 0) : numbers_(count, value) {}
  ~DeviceFloats() {
    static std::mutex mutex;
    static std::deque<std::vector<float>> kept;
    const std::lock_guard lock(mutex);
    kept.push_back(std::move(numbers_));
  }
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;

  float* data() { return numbers_.data(); }
  std::size_t size() const { return numbers_.size(); }

 private:
  std::vector<float> numbers_;
};

void sum(Communicator& comm) {
  DeviceFloats data(100, 1.0f);
  comm.all_reduce(data.data(), data.size(), DataType::Float32, ReduceOp::Sum);
}

const std::map<std::string, std::function<void(Communicator&)>> all_calls{
    {"ncclAllReduce", sum},
    {"ncclAllGather",
     [](Communicator& comm) {
       DeviceFloats one(10), all(30);
       comm.all_gather(one.data(), all.data(), 10, DataType::Float32);
     }},
    {"ncclReduceScatter",
     [](Communicator& comm) {
       DeviceFloats all(30), one(10);
       comm.reduce_scatter(all.data(), one.data(), 10, DataType::Float32, ReduceOp::Sum);
     }},
    {"ncclBroadcast",
     [](Communicator& comm) {
       DeviceFloats data(10);
       comm.broadcast(data.data(), 10, DataType::Float32, 1);
     }},
    {"ncclRecv",
     [](Communicator& comm) {
       DeviceFloats value(1);
       comm.recv(value.data(), 1, DataType::Float32, (comm.rank() + 1) % comm.world_size());
     }},
    {"ncclCommInitRankConfig", [](Communicator&) {}},
};

// Forks ranks that each make one call and then sum until an error ends them; what each said of it.
std::vector<std::string> errors_of_processes(const Cluster& cluster,
                                             const std::function<void(Communicator&)>& call) {
  constexpr std::size_t text_bytes = 2048;
  const auto ranks = static_cast<std::size_t>(cluster.world);
  const auto board = MappedExchange::create(cluster.world);
  auto* const texts = static_cast<char*>(::mmap(nullptr, ranks * text_bytes, PROT_READ | PROT_WRITE,
                                                MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  REQUIRE(texts != MAP_FAILED);
  std::vector<pid_t> children;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    try {
      const auto comm = connect_rank(cluster, static_cast<int>(rank), board);
      call(*comm);
      for (;;) sum(*comm);
    } catch (const CommunicatorError& error) {
      std::snprintf(texts + rank * text_bytes, text_bytes, "%s", error.what());
    }
    ::_exit(0);
  }
  std::vector<std::string> errors;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    ::waitpid(children[rank], nullptr, 0);
    errors.emplace_back(texts + rank * text_bytes);
  }
  ::munmap(texts, ranks * text_bytes);
  return errors;
}

// A CUDA graph of one all_reduce, or of other work on the communicator's stream.
class RecordedSum {
 public:
  explicit RecordedSum(Communicator& comm, const std::function<void()>& other = {})
      : comm_(dynamic_cast<WaitingNccl&>(comm)) {
    check_cuda(cudaStreamBeginCapture(comm_.stream(), cudaStreamCaptureModeThreadLocal), "begin");
    if (other) {
      other();
    } else {
      comm_.nccl().all_reduce(&value, 1, DataType::Float32, ReduceOp::Sum, comm_.stream());
    }
    check_cuda(cudaStreamEndCapture(comm_.stream(), &graph_), "end");
    check_cuda(cudaGraphInstantiate(&exec_, graph_, 0), "instantiate");
  }
  ~RecordedSum() {
    cudaGraphExecDestroy(exec_);
    cudaGraphDestroy(graph_);
  }
  RecordedSum(const RecordedSum&) = delete;
  RecordedSum& operator=(const RecordedSum&) = delete;

  void replay() {
    check_cuda(cudaGraphLaunch(exec_, comm_.stream()), "launch");
    comm_.replayed(nullptr);
  }

  // The host goes on.
  void queue() {
    check_cuda(cudaGraphLaunch(exec_, comm_.stream()), "launch");
    comm_.nccl().replayed(comm_.stream());
  }

  float value = 1;

 private:
  WaitingNccl& comm_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

// What rank 0 is told of `goes_on`, after a replay of both, by itself: rank 1 makes no other.
std::string error_without_rank_1(const std::function<void(RecordedSum&)>& goes_on) {
  std::counting_semaphore<> failed(0);
  const Cluster cluster{.world = 2, .collective_timeout = patience(200ms)};
  return spawn(cluster, [&](Communicator& comm) {
    RecordedSum recorded(comm);
    recorded.replay();
    if (comm.rank() == 1) {
      acquire(failed, 1);
      return;
    }
    try {
      goes_on(recorded);
    } catch (...) {
      failed.release();
      throw;
    }
  })[0];
}

}  // namespace

TEST_CASE("a rank that is killed in any call is named by all others", "[worker][nccl]") {
  for (const auto& [function, call] : all_calls) {
    const Switch killed("FAKE_NCCL_KILL", "1:" + function);
    const auto errors = errors_of_processes({.world = 3}, call);
    for (const std::size_t rank : {0, 2}) {
      INFO(function << ", rank " << rank << ": " << errors[rank]);
      CHECK(contains(errors[rank], "rank 1 (pid "));
      CHECK(contains(errors[rank], "is gone"));
    }
  }
}

TEST_CASE("a rank that closed the communicator is named when the others' work is late",
          "[worker][nccl]") {
  const Cluster cluster{.world = 3, .collective_timeout = patience(200ms)};
  const auto errors = spawn(cluster, [&](Communicator& comm) {
    comm.barrier();
    if (comm.rank() != 1) sum(comm);
  });
  for (const std::size_t rank : {0, 2}) {
    INFO(errors[rank]);
    CHECK(contains(errors[rank], ": rank 1 closed the communicator"));
  }
}

TEST_CASE("an error that NCCL finds in the background ends the work of all ranks",
          "[worker][nccl]") {
  const Switch lost("FAKE_NCCL_LOST", "1:2");
  const auto errors = spawn({.world = 3}, [&](Communicator& comm) {
    for (int round = 0; round < 5; ++round) sum(comm);
  });
  for (const std::string& error : errors) {
    INFO(error);
    CHECK(contains(error, "rank 1: "));
    CHECK(contains(error, "remote process exited or there was a network error: NET/Socket"));
  }
}

TEST_CASE("a rank that does not get through NCCL's start ends that of all, in time",
          "[worker][nccl]") {
  const Switch hung("FAKE_NCCL_HANG_INIT", "1");
  Cluster cluster{.world = 2};
  cluster.connect_timeout = patience(300ms);
  for (const std::string& error : spawn(cluster, sum)) {
    INFO(error);
    CHECK(contains(error, "ncclCommInitRankConfig did not end in time"));
  }
}

TEST_CASE("what interrupts a meeting ends it, and NCCL's start", "[worker][nccl]") {
  const ddprun::rendezvous::UniqueFd over(::eventfd(1, EFD_CLOEXEC));
  Cluster cluster{.world = 2};
  cluster.interrupt_fd = over.get();
  for (const std::string& error : spawn(cluster, sum)) {
    INFO(error);
    CHECK(contains(error, "stopped connecting to its peers: it was interrupted"));
  }

  const Switch hung("FAKE_NCCL_HANG_INIT", "0");  // One that meets nobody gets that far.
  cluster.world = 1;
  const std::string error = spawn(cluster, sum).front();
  INFO(error);
  CHECK(contains(error, "ncclCommInitRankConfig was interrupted"));
}

TEST_CASE("positions are gathered on the host by way of the device", "[worker][nccl]") {
  const auto errors = spawn({.world = 3}, [](Communicator& comm) {
    const std::int64_t own[] = {10 + comm.rank(), 7};
    std::int64_t all[6] = {};
    comm.all_gather_on_host(own, all, sizeof own);
    const std::vector<std::int64_t> got(all, all + 6);
    if (got != std::vector<std::int64_t>{10, 7, 11, 7, 12, 7}) throw std::logic_error("wrong");
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("a collective that a peer has ended early is never taken for a result",
          "[worker][nccl]") {
  for (int round = 0; round < 20; ++round) {
    std::counting_semaphore<> called(0);
    std::atomic<int> results{0};
    const auto errors = spawn({.world = 3}, [&](Communicator& comm) {
      comm.barrier();
      if (comm.rank() == 2) {
        acquire(called, 2);
        comm.abort("enough");
        return;
      }
      called.release();
      sum(comm);
      ++results;
    });
    CHECK(results == 0);
  }
}

TEST_CASE("a slow rank is waited for, and told of once", "[worker][nccl]") {
  const Switch slow("FAKE_NCCL_SLOW", "1:300");
  std::atomic<int> told{0};
  std::string text;
  Cluster cluster{.world = 2, .slow_wait = 100ms};
  cluster.on_slow_wait = [&](int rank, const std::string& words) {
    if (rank == 0 && told++ == 0) text = words;
  };
  for (const std::string& error : spawn(cluster, sum)) CHECK(error == "");
  INFO(text);
  CHECK(told == 1);
  CHECK(contains(text, "all_reduce(count=100, float32, sum), call 1 on the device"));
  CHECK(contains(text, "rank 1 (pid "));
  CHECK_FALSE(contains(text, "rank 0 (pid "));
  CHECK_FALSE(contains(text, "rank 2"));
}

TEST_CASE("work that is late on the device is blamed on the peers that there are",
          "[worker][nccl]") {
  const auto timeout = patience(100ms);
  const Switch slow("FAKE_NCCL_SLOW", "1:" + std::to_string(4 * timeout.count()));
  const auto errors = spawn({.world = 2, .collective_timeout = timeout}, sum);
  for (const std::string& error : errors) {
    INFO(error);
    // Both have made the call; whichever finds out first says so for both.
    const std::size_t cause = error.find("on the device timed out after ");
    REQUIRE(cause != std::string::npos);
    const std::string late = contains(error, "rank 0: all_reduce") ? "rank 1" : "rank 0";
    CHECK(contains(error.substr(cause), ": " + late + " had not got as far"));
  }
}

TEST_CASE("18.1: memory that is given back while a collective is under way stays until its end",
          "[worker][nccl]") {
  const Switch slow("FAKE_NCCL_SLOW", "1:100");
  const auto errors = spawn({.world = 2}, [](Communicator& comm) {
    auto& waiting = dynamic_cast<WaitingNccl&>(comm);
    std::shared_ptr<void> memory = waiting.nccl().allocate(4096);
    waiting.nccl().all_reduce(memory.get(), 1024, DataType::Float32, ReduceOp::Sum,
                              waiting.stream());
    memory.reset();  // Else the collective writes to where nothing is.
    waiting.nccl().wait(waiting.stream());
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("ranks of a host that name no GPU have one each", "[worker][nccl]") {
  std::array<std::optional<int>, 3> devices;
  const auto errors = ddprun::testing::meet_ranks(3, [&](WorkerEnv env) {
    env.local_rank_known = env.local_world_size_known = false;  // They find out when they meet.
    CommunicatorOptions options;
    options.connect_timeout = patience(20s);
    NcclCommunicator communicator(env, options);
    communicator.barrier(nullptr);
    devices.at(static_cast<std::size_t>(env.rank)) = communicator.cuda_device();
  });
  for (const std::string& error : errors) CHECK(error == "");
  CHECK(devices == std::array<std::optional<int>, 3>{0, 1, 2});
}

TEST_CASE("18.1: a rank has a context on its own GPU alone, whatever thread calls",
          "[worker][nccl]") {
  Cluster cluster{.world = 3};
  cluster.cuda_devices = {1, 3, 4};
  fake_cuda_forget_contexts();
  // On GPU 0, as far as the thread knows.
  const auto elsewhere = [](const std::function<void()>& call) {
    std::thread([&] {
      try {
        call();
      } catch (const CommunicatorError&) {  // That rank 1 has had enough.
      }
    }).join();
  };
  std::atomic<int> gathered = 0;
  spawn(cluster, [&](Communicator& comm) {
    for (const auto& [function, call] : all_calls) {
      if (function != "ncclRecv") elsewhere([&] { call(comm); });  // Nobody sends.
    }
    std::shared_ptr<void> memory;
    elsewhere([&] { memory = comm.allocate(1'000); });
    elsewhere([&] { memory.reset(); });
    elsewhere([&] {
      const int own = comm.rank();
      std::vector<int> all(3);
      comm.all_gather_on_host(&own, all.data(), sizeof own);
      if (all == std::vector<int>{0, 1, 2}) ++gathered;
      comm.barrier();
    });
    elsewhere([&] { dynamic_cast<WaitingNccl&>(comm).nccl().wait(nullptr); });
    if (comm.rank() == 1) elsewhere([&] { comm.abort("enough"); });
  });
  CHECK(gathered == 3);
  CHECK(fake_cuda_contexts() == (1UL << 1 | 1UL << 3 | 1UL << 4));
}

TEST_CASE("a GPU that two ranks use is an error in NCCL's words", "[worker][nccl]") {
  Cluster cluster{.world = 2};
  cluster.cuda_devices = {3, 3};
  for (const std::string& error : spawn(cluster, sum)) {
    INFO(error);
    CHECK(contains(error, "invalid usage"));
    CHECK(contains(error, "Duplicate GPU detected : rank "));
  }
}

TEST_CASE("a fault of the device ends the work of all ranks in CUDA's words", "[worker][nccl]") {
  const Switch fault("FAKE_CUDA_FAULT", "20");
  const auto errors = errors_of_processes({.world = 2}, sum);
  for (const std::string& error : errors) {
    INFO(error);
    CHECK(contains(error, "an illegal memory access was encountered"));
  }
}

TEST_CASE("NCCL that is too old is refused before the others are met", "[worker][nccl]") {
  const Switch old("FAKE_NCCL_VERSION", "21805");
  const auto errors = spawn({.world = 1}, sum);
  INFO(errors[0]);
  CHECK(contains(errors[0], "NCCL 2.18.5 is too old, 2.27.0 or newer is needed"));
  CHECK(contains(errors[0], "libnccl.so.2 (LD_LIBRARY_PATH"));
}

TEST_CASE("a device that takes no more work ends the call, and the process, in time",
          "[worker][nccl]") {
  const Switch stalled("FAKE_CUDA_STALL", "10");
  const auto errors = errors_of_processes({.world = 2, .collective_timeout = patience(200ms)}, sum);
  for (const std::string& error : errors) {
    INFO(error);
    CHECK(contains(error, "on the device timed out"));
  }
}

TEST_CASE("a collective that a graph has recorded is made by each replay", "[worker][nccl]") {
  std::atomic<int> right{0};
  const auto errors = spawn({.world = 2}, [&](Communicator& comm) {
    RecordedSum recorded(comm);
    recorded.replay();
    recorded.replay();
    right += recorded.value == 4;
  });
  for (const std::string& error : errors) CHECK(error == "");
  CHECK(right == 2);
}

constexpr auto slow_work = 50ms;

// Rank 1's device computes for so long before each sum: for how long each rank's stream waits in
// one step.
std::vector<std::chrono::nanoseconds> waits_for_slow_rank_1(bool in_graph) {
  constexpr int steps = 4;
  std::vector<std::chrono::nanoseconds> waits(2);
  const auto errors = spawn({.world = 2}, [&](Communicator& comm) {
    auto& ranks = dynamic_cast<WaitingNccl&>(comm);
    NcclCommunicator& nccl = ranks.nccl();
    float value = 1;
    const auto step = [&] {
      if (comm.rank() == 1) {
        const auto compute = [](void*) { std::this_thread::sleep_for(slow_work); };
        check_cuda(cudaLaunchHostFunc(ranks.stream(), compute, nullptr), "cudaLaunchHostFunc");
      }
      nccl.wait_begins(ranks.stream());
      nccl.all_reduce(&value, 1, DataType::Float32, ReduceOp::Sum, ranks.stream());
      nccl.wait_ends(ranks.stream());
    };
    const std::unique_ptr<RecordedSum> graph =
        in_graph ? std::make_unique<RecordedSum>(comm, step) : nullptr;
    for (int i = 0; i < steps; ++i) {
      in_graph ? graph->queue() : step();
    }
    nccl.wait(ranks.stream());
    waits[static_cast<std::size_t>(comm.rank())] = nccl.waited() / steps;
  });
  for (const std::string& error : errors) CHECK(error == "");
  return waits;
}

TEST_CASE("18.1: a rank's stream is known to wait for a slow one, in a graph, too",
          "[worker][nccl]") {
  for (const bool in_graph : {false, true}) {
    const auto waits = waits_for_slow_rank_1(in_graph);
    INFO("in a graph: " << in_graph << ", ns: " << waits[0].count() << ", " << waits[1].count());
    CHECK(waits[0] > slow_work / 2);
    CHECK(waits[0] > 2 * waits[1]);
  }
}

TEST_CASE("a replay that a peer does not make is late, and the peer is named", "[worker][nccl]") {
  const auto error = error_without_rank_1([](RecordedSum& recorded) { recorded.replay(); });
  INFO(error);
  CHECK(contains(error, "all_reduce(count=1, float32, sum), call 1 on the device timed out"));
  CHECK(contains(error, "rank 1 did not call it"));
}

TEST_CASE("a queue that is full behind a peer that hangs keeps nobody from ending it",
          "[worker][nccl]") {
  // Of work and the events behind it: with one more the caller is kept in the other's call.
  for (const char* room : {"7", "8"}) {
    const Switch full("FAKE_CUDA_QUEUE", room);
    const auto error = error_without_rank_1([](RecordedSum& recorded) {
      for (;;) recorded.queue();
    });
    INFO("a stream has room for " << room << ": " << error);
    CHECK(contains(error, "all_reduce(count=1, float32, sum)"));
    CHECK(contains(error, "on the device timed out"));
    CHECK(contains(error, "rank 1 did not call it"));
  }
}

TEST_CASE("a thread that never chose a GPU waits for the rank's", "[worker][nccl]") {
  const Switch slow("FAKE_NCCL_SLOW", "0:300");
  Cluster cluster{.world = 1};
  cluster.cuda_devices = {3};
  float value = 1;
  bool was_done = false;
  const auto errors = spawn(cluster, [&](Communicator& comm) {
    NcclCommunicator& nccl = dynamic_cast<WaitingNccl&>(comm).nccl();
    nccl.all_reduce(&value, 1, DataType::Float32, ReduceOp::Sum, nullptr);
    std::thread([&] {
      nccl.wait(nullptr);
      check_cuda(cudaSetDevice(3), "cudaSetDevice");
      was_done = cudaStreamQuery(nullptr) == cudaSuccess;
    }).join();
  });
  CHECK(errors[0] == "");
  CHECK(was_done);
}

TEST_CASE("a communicator whose graphs still exist is closed in time, and they can go afterwards",
          "[worker][nccl]") {
  for (const bool aborted : {false, true}) {
    Cluster cluster{.world = 2, .collective_timeout = patience(200ms)};
    std::atomic<int> told{0};
    cluster.on_slow_wait = [&](int, const std::string& text) {
      told += contains(text, ": NCCL's communicator did not end within ") &&
              contains(text, "destroy graphs first");
    };
    std::vector<std::unique_ptr<RecordedSum>> graphs(2);
    const auto begun = std::chrono::steady_clock::now();
    spawn(cluster, [&](Communicator& comm) {
      auto& graph = graphs[static_cast<std::size_t>(comm.rank())];
      graph = std::make_unique<RecordedSum>(comm);
      graph->replay();
      if (aborted) comm.abort("enough");
    });
    INFO("aborted: " << aborted);
    CHECK(std::chrono::steady_clock::now() - begun < cluster.collective_timeout + patience(5s));
    CHECK(told == 2);
  }
}
