// isend and irecv: in any order with each other, and across collectives, be they posted before or
// after.
#include <sys/resource.h>

#include <algorithm>
#include <future>
#include <numeric>

#include "tests/testing/catch.h"
#include "tests/testing/text.h"
#include "tests/worker/communicator_cluster.h"
#include "worker/peers/frame.h"

using namespace ddprun::worker;

namespace {

std::vector<std::int32_t> numbers(int seed, std::size_t count) {
  std::vector<std::int32_t> values(count);
  std::iota(values.begin(), values.end(), seed * 1'000'003);
  return values;
}

const std::size_t large = 3'000'000;  // More than any socket holds.

// The most memory that this process has had so far.
long peak_mib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

}  // namespace

TEST_CASE("two ranks that send to each other at once do not wait for each other",
          "[worker][communicator][any-backend]") {
  for (const Wiring wiring : wirings) {
    std::atomic<int> wrong{0};
    require_no_errors(spawn({.world = 2, .wiring = wiring}, [&](Communicator& comm) {
      const int peer = 1 - comm.rank();
      const auto out = numbers(comm.rank(), large);
      std::vector<std::int32_t> in(large);
      const auto sending = comm.isend(out.data(), large, DataType::Int32, peer);
      const auto receiving = comm.irecv(in.data(), large, DataType::Int32, peer);
      receiving->wait();
      sending->wait();
      wrong += in != numbers(peer, large);
      wrong += !sending->test() || !receiving->test();
      comm.barrier();
    }));
    CHECK(wrong == 0);
  }
}

TEST_CASE("messages arrive in the order in which their receives were posted",
          "[worker][communicator][any-backend]") {
  for (const Wiring wiring : wirings) {
    std::atomic<int> wrong{0};
    require_no_errors(spawn({.world = 3, .wiring = wiring}, [&](Communicator& comm) {
      const int next = (comm.rank() + 1) % 3, previous = (comm.rank() + 2) % 3;
      std::vector<std::vector<std::int32_t>> out, in(20);
      std::vector<std::unique_ptr<Request>> requests;
      for (int i = 0; i < 20; ++i) {
        const std::size_t count = static_cast<std::size_t>(1 + i * 997);
        out.push_back(numbers(100 * comm.rank() + i, count));
        in[static_cast<std::size_t>(i)].resize(count);
      }
      for (auto& data : in) {
        requests.push_back(comm.irecv(data.data(), data.size(), DataType::Int32, previous));
      }
      for (auto& data : out) {
        requests.push_back(comm.isend(data.data(), data.size(), DataType::Int32, next));
      }
      // The last first: all others must be done then too, or become so.
      for (auto request = requests.rbegin(); request != requests.rend(); ++request) {
        (*request)->wait();
      }
      for (int i = 0; i < 20; ++i) {
        const auto& data = in[static_cast<std::size_t>(i)];
        wrong += data != numbers(100 * previous + i, data.size());
      }
      comm.barrier();
    }));
    CHECK(wrong == 0);
  }
}

TEST_CASE("every rank may exchange messages with every other one at once",
          "[worker][communicator][any-backend]") {
  const int world = 4;
  const auto count = [](int from, int to) {
    return static_cast<std::size_t>(1 + (from * 4 + to) * 40'007);
  };
  for (const Wiring wiring : wirings) {
    std::atomic<int> wrong{0};
    require_no_errors(spawn({.world = world, .wiring = wiring}, [&](Communicator& comm) {
      const int rank = comm.rank();
      std::vector<std::vector<std::int32_t>> out(world), in(world);
      std::vector<std::unique_ptr<Request>> requests;
      for (int peer = 0; peer < world; ++peer) {
        if (peer == rank) continue;
        auto& received = in[static_cast<std::size_t>(peer)];
        auto& sent = out[static_cast<std::size_t>(peer)];
        received.resize(count(peer, rank));
        sent = numbers(10 * rank + peer, count(rank, peer));
        requests.push_back(comm.irecv(received.data(), received.size(), DataType::Int32, peer));
        requests.push_back(comm.isend(sent.data(), sent.size(), DataType::Int32, peer));
      }
      for (const auto& request : requests) request->wait();
      for (int peer = 0; peer < world; ++peer) {
        if (peer == rank) continue;
        wrong += in[static_cast<std::size_t>(peer)] != numbers(10 * peer + rank, count(peer, rank));
      }
      comm.barrier();
    }));
    CHECK(wrong == 0);
  }
}

TEST_CASE("a receive that was posted before collectives is met after them",
          "[worker][communicator][any-backend]") {
  for (const Wiring wiring : wirings) {
    for (const std::size_t count : {std::size_t{10}, large}) {
      std::atomic<int> wrong{0};
      require_no_errors(spawn({.world = 2, .wiring = wiring}, [&](Communicator& comm) {
        std::vector<std::int32_t> early(count), late(count), sum(20'000, 1);
        const auto first = numbers(1, count), second = numbers(2, count);
        const auto reduce = [&] {
          comm.all_reduce(sum.data(), sum.size(), DataType::Int32, ReduceOp::Sum);
        };
        if (comm.rank() == 0) {
          const auto one = comm.irecv(early.data(), count, DataType::Int32, 1);
          const auto two = comm.irecv(late.data(), count, DataType::Int32, 1);
          one->test();
          reduce();
          two->test();
          one->wait();
          reduce();
          two->wait();
          wrong += early != first || late != second;
        } else {
          const auto one = comm.isend(first.data(), count, DataType::Int32, 0);
          reduce();
          reduce();
          comm.isend(second.data(), count, DataType::Int32, 0)->wait();
          one->wait();
        }
        wrong += sum != std::vector<std::int32_t>(20'000, 4);
        comm.barrier();
      }));
      INFO(name_of(wiring) << ", " << count);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("test says false until the message is here", "[worker][communicator][any-backend]") {
  for (const Wiring wiring : wirings) {
    std::atomic<int> wrong{0};
    require_no_errors(spawn({.world = 2, .wiring = wiring}, [&](Communicator& comm) {
      std::int32_t value = comm.rank() == 0 ? 0 : 42;
      if (comm.rank() == 0) {
        const auto request = comm.irecv(&value, 1, DataType::Int32, 1);
        wrong += request->test();  // Rank 1 sends after the barrier.
        comm.barrier();
        const auto deadline =
            std::chrono::steady_clock::now() + ddprun::testing::patience(std::chrono::seconds{20});
        while (!request->test() && std::chrono::steady_clock::now() < deadline) {
          std::this_thread::yield();
        }
        wrong += value != 42;
      } else {
        comm.barrier();
        comm.isend(&value, 1, DataType::Int32, 0)->wait();
      }
      comm.barrier();
    }));
    CHECK(wrong == 0);
  }
}

TEST_CASE("messages that do not fit each other are an error on both ranks",
          "[worker][communicator]") {
  for (const Wiring wiring : wirings) {
    const auto errors = spawn({.world = 2, .wiring = wiring}, [&](Communicator& comm) {
      std::vector<float> data(10);
      if (comm.rank() == 0) {
        comm.recv(data.data(), 9, DataType::Float32, 1);
      } else {
        comm.send(data.data(), 10, DataType::Float32, 0);
        comm.barrier();
      }
    });
    for (const std::string& error : errors) {
      INFO(name_of(wiring) << ": " << error);
      CHECK(error.find("rank 0 called send/recv(count=9, float32), call 1, but rank 1 called "
                       "send/recv(count=10, float32), call 1") != std::string::npos);
    }
  }
}

TEST_CASE("a collective of a peer from whom a message is awaited is an error",
          "[worker][communicator]") {
  const auto errors = spawn({.world = 2, .wiring = Wiring::Tcp}, [&](Communicator& comm) {
    float value = 0;
    if (comm.rank() == 0) {
      comm.recv(&value, 1, DataType::Float32, 1);
    } else {
      comm.all_reduce(&value, 1, DataType::Float32, ReduceOp::Sum);
    }
  });
  for (const std::string& error : errors) {
    INFO(error);
    CHECK(error.find("but rank 1 called all_reduce") != std::string::npos);
    CHECK(error.find("a message that is received before a collective must be sent before it") !=
          std::string::npos);
  }
}

TEST_CASE("a send is no mistake of a peer that is in a collective with its receive posted before",
          "[worker][communicator][any-backend]") {
  const std::size_t long_enough = 30'000'000;  // To be under way when the collective's frame comes.
  for (const Wiring wiring : wirings) {
    std::atomic<int> wrong{0};
    require_no_errors(spawn({.world = 2, .wiring = wiring}, [&](Communicator& comm) {
      const int peer = 1 - comm.rank();
      std::int32_t small = comm.rank();
      std::vector<std::int32_t> data(long_enough, comm.rank());
      std::int32_t sum = 1;
      const auto reduce = [&] { comm.all_reduce(&sum, 1, DataType::Int32, ReduceOp::Sum); };
      if (comm.rank() == 0) {
        const auto answer = comm.irecv(&small, 1, DataType::Int32, peer);
        comm.send(data.data(), data.size(), DataType::Int32, peer);
        reduce();
        answer->wait();
        wrong += small != 1;
      } else {
        const auto question = comm.irecv(data.data(), data.size(), DataType::Int32, peer);
        reduce();
        question->wait();
        comm.send(&small, 1, DataType::Int32, peer);
        wrong += std::count(data.begin(), data.end(), 0) != std::ssize(data);
      }
      wrong += sum != 2;
      comm.barrier();
    }));
    INFO(name_of(wiring));
    CHECK(wrong == 0);
  }
}

TEST_CASE("messages that were sent before collectives are received after them, in their order",
          "[worker][communicator][any-backend]") {
  const std::vector<std::size_t> counts{3, 0, 10'000, 0, 1};
  for (const Wiring wiring : wirings) {
    std::atomic<int> wrong{0};
    require_no_errors(spawn({.world = 3, .wiring = wiring}, [&](Communicator& comm) {
      const int next = (comm.rank() + 1) % 3, previous = (comm.rank() + 2) % 3;
      std::vector<std::int32_t> sum(20'000, 1), gathered(3);
      const std::int32_t own = comm.rank();
      for (int round = 0; round < 2; ++round) {
        std::vector<std::vector<std::int32_t>> out;
        std::vector<std::int32_t> early(7), late(1);
        const auto posted = comm.irecv(early.data(), early.size(), DataType::Int32, previous);
        const auto first = numbers(50 + comm.rank(), early.size());
        comm.send(first.data(), first.size(), DataType::Int32, next);
        for (std::size_t i = 0; i < counts.size(); ++i) {
          out.push_back(numbers(10 * comm.rank() + static_cast<int>(i), counts[i]));
          comm.send(out.back().data(), counts[i], DataType::Int32, next);
        }
        comm.all_reduce(sum.data(), sum.size(), DataType::Int32, ReduceOp::Sum);
        comm.send(&own, 1, DataType::Int32, next);
        comm.all_gather(&own, gathered.data(), 1, DataType::Int32);
        comm.barrier();
        posted->wait();
        wrong += early != numbers(50 + previous, early.size());
        for (std::size_t i = 0; i < counts.size(); ++i) {
          std::vector<std::int32_t> in(counts[i]);
          comm.recv(in.data(), in.size(), DataType::Int32, previous);
          wrong += in != numbers(10 * previous + static_cast<int>(i), counts[i]);
        }
        comm.irecv(late.data(), 1, DataType::Int32, previous)->wait();
        wrong += late.front() != previous;
      }
      wrong += sum != std::vector<std::int32_t>(20'000, 9);
      wrong += gathered != std::vector<std::int32_t>{0, 1, 2};
      comm.barrier();
    }));
    INFO(name_of(wiring));
    CHECK(wrong == 0);
  }
}

TEST_CASE("a message that no socket holds is kept while its receiver is in a collective",
          "[worker][communicator]") {
  for (const Wiring wiring : {Wiring::Tcp, Wiring::TwoHosts}) {
    std::atomic<int> wrong{0};
    require_no_errors(spawn({.world = 2, .wiring = wiring}, [&](Communicator& comm) {
      const int peer = 1 - comm.rank();
      const auto out = numbers(comm.rank(), large);
      std::vector<std::int32_t> in(large), sum(20'000, 1);
      const auto sending = comm.isend(out.data(), large, DataType::Int32, peer);
      comm.all_reduce(sum.data(), sum.size(), DataType::Int32, ReduceOp::Sum);
      sending->wait();
      comm.barrier();
      const auto receiving = comm.irecv(in.data(), large, DataType::Int32, peer);
      wrong += !receiving->test();  // It has been here since the collective.
      wrong += in != numbers(peer, large) || sum != std::vector<std::int32_t>(20'000, 2);
      comm.barrier();
    }));
    INFO(name_of(wiring));
    CHECK(wrong == 0);
  }
}

TEST_CASE("more messages than are kept for after a collective are an error that says what to do",
          "[worker][communicator]") {
  const std::size_t count = kept_bytes_max / sizeof(std::int32_t);
  const auto errors = spawn({.world = 2, .wiring = Wiring::Tcp}, [&](Communicator& comm) {
    std::vector<std::int32_t> data(count);
    if (comm.rank() == 1) comm.send(data.data(), count, DataType::Int32, 0);
    comm.barrier();
  });
  for (const std::string& error : errors) {
    INFO(error);
    CHECK(error.find("rank 0 called barrier(), call 1, but rank 1 called "
                     "send/recv(count=4194304, int32), call 1") != std::string::npos);
    CHECK(error.find("a rank keeps at most 16 MiB of a peer's messages for after a collective: "
                     "receive them before it, or post their irecv() first") != std::string::npos);
  }
}

TEST_CASE("a kept message that does not fit its receive is an error on both ranks",
          "[worker][communicator]") {
  for (const Wiring wiring : wirings) {
    const auto errors = spawn({.world = 2, .wiring = wiring}, [&](Communicator& comm) {
      std::vector<float> data(10);
      if (comm.rank() == 1) comm.send(data.data(), 10, DataType::Float32, 0);
      comm.barrier();
      if (comm.rank() == 0) comm.recv(data.data(), 9, DataType::Float32, 1);
      comm.barrier();
    });
    for (const std::string& error : errors) {
      INFO(name_of(wiring) << ": " << error);
      CHECK(error.find("rank 0 called send/recv(count=9, float32), call 1, but rank 1 called "
                       "send/recv(count=10, float32), call 1") != std::string::npos);
    }
  }
}

TEST_CASE("what a rank sent before a collective is received after it has left, unless it failed",
          "[worker][communicator]") {
  for (const Wiring wiring : wirings) {
    for (const bool fails : {false, true}) {
      std::int32_t value = 0;
      std::string error;
      const auto board = MappedExchange::create(2);
      auto peer = std::async(std::launch::async, [&] {
        const auto comm = connect_rank({.wiring = wiring}, 1, board);
        const std::int32_t sent = 42;
        comm->send(&sent, 1, DataType::Int32, 0);
        comm->barrier();
        if (fails) comm->abort("rank 1 failed: enough");
      });
      const auto comm = connect_rank({.wiring = wiring}, 0, board);
      try {
        comm->barrier();
        peer.get();
        if (fails) {
          CHECK_THROWS_AS(comm->barrier(), CommunicatorError);  // Until it has heard of it.
        }
        comm->recv(&value, 1, DataType::Int32, 1);
      } catch (const CommunicatorError& failure) {
        error = failure.what();
      }
      INFO(name_of(wiring) << ", " << fails << ": " << error);
      CHECK(value == (fails ? 0 : 42));
      CHECK(error.empty() != fails);
      CHECK(ddprun::testing::contains(error, "rank 1 failed: enough") == fails);
    }
  }
}

TEST_CASE("who waits in a collective for a peer whose message it has not received is told of it",
          "[worker][communicator]") {
  std::counting_semaphore<> told(0);
  std::string text;
  Cluster cluster{.world = 2, .wiring = Wiring::Tcp};
  cluster.slow_wait = std::chrono::milliseconds{20};
  cluster.on_slow_wait = [&](int rank, const std::string& what) {
    if (rank != 0) return;
    text = what;
    told.release();
  };
  require_no_errors(spawn(cluster, [&](Communicator& comm) {
    const float sent = 1;
    float received = 0;
    if (comm.rank() == 1) {
      comm.send(&sent, 1, DataType::Float32, 0);
      acquire(told, 1);
    }
    comm.barrier();
    if (comm.rank() == 0) comm.recv(&received, 1, DataType::Float32, 1);
  }));
  INFO(text);
  CHECK(ddprun::testing::contains(text, "in barrier(), call 1: rank 1 (pid "));
  CHECK(ddprun::testing::contains(
      text,
      "; rank 1 has sent send/recv(count=1, float32), call 1, which rank 0 has not received"));
}

TEST_CASE("a receive that an abort has ended writes nothing more, also when it is waited for",
          "[worker][communicator]") {
  for (const Wiring wiring : wirings) {
    std::counting_semaphore<> sent(0), over(0);
    std::atomic<int> wrong{0};
    const auto errors = spawn({.world = 2, .wiring = wiring}, [&](Communicator& comm) {
      const int peer = 1 - comm.rank();
      std::vector<std::int32_t> data(large, 7);
      if (comm.rank() == 1) {
        const auto sending = comm.isend(data.data(), large, DataType::Int32, peer);
        sent.release();  // The sockets are full of it.
        acquire(over, 1);
        return;
      }
      std::fill(data.begin(), data.end(), -1);
      const auto receiving = comm.irecv(data.data(), large, DataType::Int32, peer);
      acquire(sent, 1);
      comm.abort("enough");
      try {
        receiving->wait();
      } catch (...) {
        wrong += std::count(data.begin(), data.end(), -1) != std::ssize(data);
        over.release();
        throw;
      }
    });
    INFO(name_of(wiring) << ": " << errors[0]);
    CHECK(ddprun::testing::contains(errors[0], "enough"));
    CHECK(wrong == 0);
  }
}

TEST_CASE("messages that are done leave no memory behind", "[worker][communicator][any-backend]") {
  const std::size_t count = 64 << 10;
  long grown_mib = 0;
  require_no_errors(spawn({.world = 2}, [&](Communicator& comm) {
    const int peer = 1 - comm.rank();
    const std::vector<float> out(count, 1);
    std::vector<float> in(count);
    const long before_mib = peak_mib();
    for (int round = 0; round < 4000; ++round) {
      const auto sending = comm.isend(out.data(), count, DataType::Float32, peer);
      comm.irecv(in.data(), count, DataType::Float32, peer)->wait();
      sending->wait();
    }
    if (comm.rank() == 0) grown_mib = peak_mib() - before_mib;
    comm.barrier();
  }));
  CHECK(grown_mib < 100);
}

TEST_CASE("a rank whose messages are taken slowly waits, and does not copy all of them",
          "[worker][communicator][any-backend]") {
  const std::size_t count = 64 << 10;
  long grown_mib = 0;
  require_no_errors(spawn({.world = 2}, [&](Communicator& comm) {
    const int messages = 1600;
    if (comm.rank() == 0) {
      const std::vector<std::int32_t> out(count, 1);
      const long before_mib = peak_mib();
      for (int i = 0; i < messages; ++i) comm.send(out.data(), count, DataType::Int32, 1);
      grown_mib = peak_mib() - before_mib;
    } else {
      std::vector<std::int32_t> in(count);
      for (int i = 0; i < messages; ++i) {
        comm.recv(in.data(), count, DataType::Int32, 0);
        for (int work = 0; work < 20; ++work) std::rotate(in.begin(), in.begin() + 1, in.end());
      }
    }
    comm.barrier();
  }));
  CHECK(grown_mib < 100);
}
