// isend and irecv: in any order with each other, and across collectives when they were posted
// before.
#include <mutex>
#include <numeric>

#include "tests/testing/catch.h"
#include "tests/worker/communicator_cluster.h"

using namespace ddprun::worker;

namespace {

std::vector<std::int32_t> numbers(int seed, std::size_t count) {
  std::vector<std::int32_t> values(count);
  std::iota(values.begin(), values.end(), seed * 1'000'003);
  return values;
}

void require_no_errors(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) REQUIRE(error == "");
}

const std::size_t large = 3'000'000;  // More than any socket holds.

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
    CHECK(error.find("a message that was sent before a collective must be received before it") !=
          std::string::npos);
  }
}
