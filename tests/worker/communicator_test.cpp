// The collectives: ranks as threads, over shared memory, TCP and both, against a computation of
// the same tree in one place.
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <semaphore>

#include "tests/testing/catch.h"
#include "tests/worker/communicator_cluster.h"
#include "tests/worker/met_ranks.h"

using namespace ddprun::worker;

namespace {

const std::vector<int> worlds{1, 2, 3, 4, 5, 8};

// Contribution of a rank: repeatable, different per rank, with rounding errors when added.
float value(int rank, std::size_t i) {
  return std::ldexp(
      static_cast<float>((i * 2654435761u + static_cast<unsigned>(rank) * 40503u) % 8191) - 4000.0f,
      static_cast<int>((i + static_cast<std::size_t>(rank)) % 13) - 6);
}

std::vector<float> contribution(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value(rank, i);
  return values;
}

// The tree of worker/cpu/reduce.h, written as its picture says: neighbours first.
template <typename T, typename Combine>
T tree(std::vector<T> values, Combine combine) {
  while (values.size() > 1) {
    std::vector<T> next;
    for (std::size_t i = 0; i < values.size(); i += 2) {
      next.push_back(i + 1 < values.size() ? combine(values[i], values[i + 1]) : values[i]);
    }
    values = next;
  }
  return values[0];
}

std::vector<float> expected_sum(int world, std::size_t count) {
  std::vector<float> sums(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<float> values;
    for (int rank = 0; rank < world; ++rank) values.push_back(value(rank, i));
    sums[i] = tree(values, [](float a, float b) { return a + b; });
  }
  return sums;
}

}  // namespace

TEST_CASE("all_reduce gives the bits of one fixed tree for every world, wiring and size",
          "[worker][communicator][any-backend]") {
  for (const Wiring wiring : wirings) {
    for (const int world : worlds) {
      std::mutex mutex;
      std::vector<std::string> wrong;
      const auto errors = spawn({.world = world, .wiring = wiring}, [&](Communicator& comm) {
        for (const std::size_t count : {0, 1, 2, 15, 17, 1000, 1024, 1025, 5000, 20011}) {
          std::vector<float> data = contribution(comm.rank(), count);
          comm.all_reduce(data.data(), count, DataType::Float32, ReduceOp::Sum);
          const auto expected = expected_sum(world, count);
          if (!std::equal(data.begin(), data.end(), expected.begin())) {
            const std::lock_guard lock(mutex);
            wrong.push_back(std::to_string(count));
          }
        }
      });
      INFO(name_of(wiring) << ", world " << world);
      require_no_errors(errors);
      CHECK(wrong == std::vector<std::string>{});
    }
  }
}

TEST_CASE("large buffers of several chunks are reduced, scattered and broadcast",
          "[worker][communicator][any-backend]") {
  for (const Wiring wiring : wirings) {
    for (const int world : {2, 4}) {
      std::atomic<int> wrong{0};
      const std::size_t count = 2'500'003;  // 10 MB.
      const auto expected = expected_sum(world, count);
      require_no_errors(spawn(
          {.world = world, .wiring = wiring, .chunk_bytes = 1 << 20}, [&](Communicator& comm) {
            const auto own = contribution(comm.rank(), count);
            auto data = own;
            comm.all_reduce(data.data(), count, DataType::Float32, ReduceOp::Sum);
            wrong += data != expected;
            const std::size_t part = count / static_cast<std::size_t>(world);
            comm.reduce_scatter(own.data(), data.data(), part, DataType::Float32, ReduceOp::Sum);
            wrong += !std::equal(
                data.begin(), data.begin() + static_cast<std::ptrdiff_t>(part),
                expected.begin() +
                    static_cast<std::ptrdiff_t>(part * static_cast<std::size_t>(comm.rank())));
            data = own;
            comm.broadcast(data.data(), count, DataType::Float32, world - 1);
            wrong += data != contribution(world - 1, count);
          }));
      INFO(name_of(wiring) << ", world " << world);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("all_reduce in place on allocated memory gives the same bits as on other memory",
          "[worker][communicator][any-backend]") {
  for (const Wiring wiring : wirings) {
    for (const int world : worlds) {
      std::atomic<int> wrong{0};
      const auto errors = spawn({.world = world, .wiring = wiring}, [&](Communicator& comm) {
        const std::size_t count = 9001;
        const auto memory = comm.allocate(count * sizeof(float) + 64);
        const auto second = comm.allocate(100);
        const auto expected = expected_sum(world, count);
        // Odd ranks use their own memory in the second round, so that both kinds meet.
        for (int round = 0; round < 6; ++round) {
          std::vector<float> own = contribution(comm.rank(), count);
          float* data = own.data();
          if (round % 2 == 0 || comm.rank() % 2 == 0) {
            data = static_cast<float*>(memory.get()) + round;
            std::memcpy(data, own.data(), count * sizeof(float));
          }
          comm.all_reduce(data, count, DataType::Float32, ReduceOp::Sum);
          if (std::memcmp(data, expected.data(), count * sizeof(float)) != 0) ++wrong;
        }
      });
      INFO(name_of(wiring) << ", world " << world);
      require_no_errors(errors);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("allocated memory is zeroed, aligned, and can be given back in any order",
          "[worker][communicator][any-backend]") {
  std::atomic<int> wrong{0};
  require_no_errors(spawn({.world = 3}, [&](Communicator& comm) {
    for (int round = 0; round < 5; ++round) {
      auto first = comm.allocate(1000);
      auto second = comm.allocate(0);
      auto third = comm.allocate(100'000);
      for (const void* pointer : {first.get(), second.get(), third.get()}) {
        if (pointer == nullptr || reinterpret_cast<std::uintptr_t>(pointer) % 64 != 0) ++wrong;
      }
      for (int i = 0; i < 1000; ++i) wrong += static_cast<unsigned char*>(first.get())[i] != 0;
      if (comm.rank() == 0) first.reset();
      std::vector<float> ones(20'000, 1.0f);
      std::memcpy(third.get(), ones.data(), 80'000);
      comm.all_reduce(third.get(), 20'000, DataType::Float32, ReduceOp::Sum);
      if (static_cast<float*>(third.get())[19'999] != 3.0f) ++wrong;
      if (comm.rank() != 1) third.reset();
    }
  }));
  CHECK(wrong == 0);
}

namespace {

template <typename T>
std::vector<T> integers(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(i * 31 + static_cast<std::size_t>(rank) * 7);
  }
  return values;
}

// All operations of one type on every wiring; the expected value comes from `combine` over ranks.
template <typename T>
void check_operation(DataType type, ReduceOp op, const std::function<T(std::vector<T>)>& expected) {
  for (const Wiring wiring : wirings) {
    for (const int world : {2, 3, 5}) {
      std::atomic<int> wrong{0};
      const auto errors = spawn({.world = world, .wiring = wiring}, [&](Communicator& comm) {
        const std::size_t count = 3001;
        std::vector<T> data = integers<T>(comm.rank(), count);
        comm.all_reduce(data.data(), count, type, op);
        for (std::size_t i = 0; i < count; ++i) {
          std::vector<T> values;
          for (int rank = 0; rank < world; ++rank) {
            values.push_back(static_cast<T>(i * 31 + static_cast<std::size_t>(rank) * 7));
          }
          if (data[i] != expected(values)) ++wrong;
        }
      });
      INFO(name_of(wiring) << ", world " << world << ", type " << int(type) << ", op " << int(op));
      require_no_errors(errors);
      CHECK(wrong == 0);
    }
  }
}

template <typename T>
void check_operations(DataType type) {
  const auto add = [](T a, T b) { return static_cast<T>(a + b); };
  check_operation<T>(type, ReduceOp::Sum, [&](const std::vector<T>& v) { return tree(v, add); });
  check_operation<T>(type, ReduceOp::Max,
                     [](const std::vector<T>& v) { return *std::max_element(v.begin(), v.end()); });
  check_operation<T>(type, ReduceOp::Min,
                     [](const std::vector<T>& v) { return *std::min_element(v.begin(), v.end()); });
  if constexpr (std::is_floating_point_v<T>) {
    check_operation<T>(type, ReduceOp::Average, [&](const std::vector<T>& v) {
      return tree(v, add) / static_cast<T>(v.size());
    });
  }
}

}  // namespace

TEST_CASE("every operation is right on float32", "[worker][communicator][any-backend]") {
  check_operations<float>(DataType::Float32);
}
TEST_CASE("every operation is right on float64", "[worker][communicator][any-backend]") {
  check_operations<double>(DataType::Float64);
}
TEST_CASE("every operation is right on int32", "[worker][communicator][any-backend]") {
  check_operations<std::int32_t>(DataType::Int32);
}
TEST_CASE("every operation is right on int64", "[worker][communicator][any-backend]") {
  check_operations<std::int64_t>(DataType::Int64);
}
TEST_CASE("every operation is right on uint8", "[worker][communicator][any-backend]") {
  check_operations<std::uint8_t>(DataType::UInt8);
}

TEST_CASE("all_reduce takes memory at any address", "[worker][communicator][any-backend]") {
  for (const Wiring wiring : wirings) {
    std::atomic<int> wrong{0};
    const auto errors = spawn({.world = 3, .wiring = wiring}, [&](Communicator& comm) {
      const std::size_t count = 2500;
      const auto own = contribution(comm.rank(), count);
      const auto expected = expected_sum(3, count);
      std::vector<char> room(count * sizeof(float) + 16);
      const auto shared = comm.allocate(room.size());
      for (char* base : {room.data() + 1 + comm.rank(), static_cast<char*>(shared.get()) + 3}) {
        std::memcpy(base, own.data(), count * sizeof(float));
        comm.all_reduce(base, count, DataType::Float32, ReduceOp::Sum);
        if (std::memcmp(base, expected.data(), count * sizeof(float)) != 0) ++wrong;
      }
    });
    INFO(name_of(wiring));
    require_no_errors(errors);
    CHECK(wrong == 0);
  }
}

TEST_CASE("all_gather, reduce_scatter and broadcast give every rank its part",
          "[worker][communicator][any-backend]") {
  for (const Wiring wiring : wirings) {
    for (const int world : worlds) {
      std::atomic<int> wrong{0};
      const auto errors = spawn({.world = world, .wiring = wiring}, [&](Communicator& comm) {
        const auto ranks = static_cast<std::size_t>(world);
        const auto rank = static_cast<std::size_t>(comm.rank());
        for (const std::size_t count : {0, 1, 33, 4099}) {
          const auto own = contribution(comm.rank(), count);
          std::vector<float> all(count * ranks);
          comm.all_gather(own.data(), all.data(), count, DataType::Float32);
          for (int peer = 0; peer < world; ++peer) {
            const auto theirs = contribution(peer, count);
            const auto* got = all.data() + static_cast<std::size_t>(peer) * count;
            if (!std::equal(theirs.begin(), theirs.end(), got)) ++wrong;
          }

          const auto parts = contribution(comm.rank(), count * ranks);
          std::vector<float> mine(count);
          comm.reduce_scatter(parts.data(), mine.data(), count, DataType::Float32, ReduceOp::Sum);
          const auto sums = expected_sum(world, count * ranks);
          if (!std::equal(mine.begin(), mine.end(),
                          sums.begin() + static_cast<std::ptrdiff_t>(rank * count)))
            ++wrong;

          for (int root = 0; root < world; ++root) {
            auto data = contribution(comm.rank(), count);
            comm.broadcast(data.data(), count, DataType::Float32, root);
            if (data != contribution(root, count)) ++wrong;
          }
          comm.barrier();
        }
      });
      INFO(name_of(wiring) << ", world " << world);
      require_no_errors(errors);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("messages arrive in order between two ranks, also between collectives",
          "[worker][communicator][any-backend]") {
  for (const Wiring wiring : wirings) {
    std::atomic<int> wrong{0};
    const auto errors = spawn({.world = 3, .wiring = wiring}, [&](Communicator& comm) {
      const int next = (comm.rank() + 1) % 3;
      const int previous = (comm.rank() + 2) % 3;
      for (int round = 0; round < 20; ++round) {
        std::vector<float> out(2000, static_cast<float>(comm.rank() * 100 + round));
        std::vector<float> in(2000);
        comm.send(out.data(), out.size(), DataType::Float32, next);
        comm.recv(in.data(), in.size(), DataType::Float32, previous);
        if (in != std::vector<float>(2000, static_cast<float>(previous * 100 + round))) ++wrong;
        if (round % 5 == 0) comm.barrier();
      }
    });
    INFO(name_of(wiring));
    require_no_errors(errors);
    CHECK(wrong == 0);
  }
}

TEST_CASE("many small calls of all kinds keep ranks in step",
          "[worker][communicator][any-backend]") {
  for (const Wiring wiring : wirings) {
    std::atomic<int> wrong{0};
    const auto errors = spawn({.world = 4, .wiring = wiring}, [&](Communicator& comm) {
      const auto shared = comm.allocate(4096 * sizeof(float));
      for (int round = 0; round < 200; ++round) {
        const std::size_t count = static_cast<std::size_t>(round * 37 % 4000);
        std::vector<float> own(4096, 1.0f);
        float* data = round % 3 == comm.rank() ? static_cast<float*>(shared.get()) : own.data();
        std::fill_n(data, count, 1.0f);
        switch (round % 4) {
          case 0:
            comm.broadcast(data, count, DataType::Float32, round % 3);
            break;
          case 1:
            comm.barrier();
            break;
          default:
            break;
        }
        comm.all_reduce(data, count, DataType::Float32, ReduceOp::Sum);
        if (std::count(data, data + count, 4.0f) != static_cast<std::ptrdiff_t>(count)) ++wrong;
      }
    });
    INFO(name_of(wiring));
    require_no_errors(errors);
    CHECK(wrong == 0);
  }
}

TEST_CASE("a world of one needs no store and changes nothing", "[worker][communicator]") {
  const auto comm = make_cpu_communicator(WorkerEnv{});
  std::vector<float> data{1, 2, 3};
  comm->all_reduce(data.data(), 3, DataType::Float32, ReduceOp::Average);
  comm->broadcast(data.data(), 3, DataType::Float32, 0);
  comm->barrier();
  CHECK(data == std::vector<float>{1, 2, 3});
  CHECK(comm->allocate(10) != nullptr);
  CHECK(comm->description() == "cpu: 1 rank");
  CHECK_FALSE(comm->is_cuda());
}

TEST_CASE("the description says how ranks are connected", "[worker][communicator]") {
  const auto description = [](Wiring wiring) {
    std::string text;
    spawn({.world = 4, .wiring = wiring}, [&](Communicator& comm) {
      if (comm.rank() == 0) text = comm.description();
    });
    return text;
  };
  CHECK(description(Wiring::SharedMemory) == "cpu: 4 ranks on 1 host, shared memory");
  CHECK(description(Wiring::Tcp) == "cpu: 4 ranks on 1 host, TCP");
  CHECK(description(Wiring::TwoHosts) == "cpu: 4 ranks on 2 hosts, shared memory + TCP");
}

TEST_CASE("ranks meet through the job's store, also for a second communicator",
          "[worker][communicator]") {
  std::atomic<int> right{0};
  const auto errors = ddprun::testing::meet_ranks(3, [&](const WorkerEnv& env) {
    CommunicatorOptions options;
    options.connect_timeout = ddprun::testing::patience(std::chrono::seconds{20});
    const auto first = make_cpu_communicator(env, options);
    const auto second = make_cpu_communicator(env, options);
    for (Communicator* comm : {first.get(), second.get()}) {
      float value = 1.0f;
      comm->all_reduce(&value, 1, DataType::Float32, ReduceOp::Sum);
      right += value == 3.0f;
    }
  });
  require_no_errors(errors);
  CHECK(right == 6);
}

TEST_CASE("the longest times that there are have room on the clock", "[worker][communicator]") {
  std::counting_semaphore<> rank_0_waits(0);
  const auto errors = ddprun::testing::meet_ranks(2, [&](const WorkerEnv& env) {
    CommunicatorOptions options;
    for (auto* const wait : {&options.connect_timeout, &options.collective_timeout,
                             &options.slow_wait, &options.slow_meeting}) {
      *wait = std::chrono::milliseconds::max();
    }
    if (env.rank == 0) options.slow_wait = std::chrono::milliseconds{1};
    options.on_slow_wait = [&](const std::string&) { rank_0_waits.release(); };
    const auto comm = make_cpu_communicator(env, options);
    if (env.rank == 1 && !acquire(rank_0_waits, 1)) throw std::runtime_error("rank 0 gave up");
    comm->barrier();
  });
  require_no_errors(errors);
}

TEST_CASE("without a store the error names where it was looked for", "[worker][communicator]") {
  WorkerEnv env;
  env.rank = 1;  // Rank 0 would host one itself, for as long as this process lives.
  env.world_size = 2;
  env.master_port = 1;  // Nobody listens there.
  CommunicatorOptions options;
  options.connect_timeout = std::chrono::milliseconds{200};
  try {
    make_cpu_communicator(env, options);
    FAIL("met others without a store");
  } catch (const CommunicatorError& error) {
    INFO(error.what());
    CHECK(std::string(error.what()).find("cannot connect to store 127.0.0.1:1 ") !=
          std::string::npos);
  }
}
