// A cluster in one line: ranks are threads of this process, connected as real ones are.
//
//   spawn({.world = 4, .wiring = Wiring::SharedMemory}, [](Communicator& comm) { ... });
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/catch.h"
#include "tests/testing/mapped_exchange.h"
#include "tests/testing/patience.h"
#include "worker/cpu/cpu_communicator.h"
#if defined(DDPRUN_TEST_OVER_NCCL)
#include "tests/worker/nccl/waiting_nccl.h"
#endif

namespace ddprun::worker {

enum class Wiring {
  SharedMemory,  // All on one host.
  Tcp,           // One host, but no shared memory.
  TwoHosts,      // Even and odd ranks pretend to be on two hosts.
};

inline const char* name_of(Wiring wiring) {
  return wiring == Wiring::SharedMemory ? "shared memory"
         : wiring == Wiring::Tcp        ? "TCP"
                                        : "two hosts";
}

#if defined(DDPRUN_TEST_OVER_MPI) || defined(DDPRUN_TEST_OVER_NCCL)
inline const std::vector<Wiring> wirings{Wiring::SharedMemory};  // These have it as they like.
#else
inline const std::vector<Wiring> wirings{Wiring::SharedMemory, Wiring::Tcp, Wiring::TwoHosts};
#endif

struct Cluster {
  int world = 2;
  Wiring wiring = Wiring::SharedMemory;
  std::size_t chunk_bytes = 4096;  // Small, so that small tests have several chunks.
  std::chrono::milliseconds collective_timeout = testing::patience(std::chrono::seconds{20});
  rendezvous::Epoch epoch = 0;
  std::chrono::milliseconds slow_wait{30'000};
  std::function<void(int rank, const std::string& text)> on_slow_wait;
  std::chrono::milliseconds connect_timeout = testing::patience(std::chrono::seconds{20});
  int interrupt_fd = -1;
  std::vector<int> cuda_devices{0, 1, 2, 3, 4, 5, 6, 7};  // Of each rank; over NCCL.
};

inline CommunicatorOptions options_of(const Cluster& cluster, int rank) {
  CommunicatorOptions options;
  options.connect_timeout = cluster.connect_timeout;
  options.collective_timeout = cluster.collective_timeout;
  options.slow_wait = cluster.slow_wait;
  options.interrupt_fd = cluster.interrupt_fd;
  if (cluster.on_slow_wait) {
    options.on_slow_wait = [tell = cluster.on_slow_wait, rank](const std::string& text) {
      tell(rank, text);
    };
  }
  options.shared_memory = cluster.wiring != Wiring::Tcp;
  options.cuda_device = cluster.cuda_devices.at(static_cast<std::size_t>(rank));
  return options;
}

#if defined(DDPRUN_TEST_OVER_NCCL)
inline std::unique_ptr<Communicator> connect_rank(const Cluster& cluster, int rank,
                                                  std::shared_ptr<MappedExchange::Board> board) {
  return std::make_unique<WaitingNccl>(rank, cluster.world, cluster.epoch, std::move(board),
                                       options_of(cluster, rank));
}
#else
inline std::unique_ptr<Communicator> connect_rank(const Cluster& cluster, int rank,
                                                  std::shared_ptr<MappedExchange::Board> board) {
  CpuCommunicatorOptions options;
  options.common = options_of(cluster, rank);
  options.chunk_bytes = cluster.chunk_bytes;
  if (cluster.wiring == Wiring::TwoHosts) options.host = rank % 2 == 0 ? "even" : "odd";
  MappedExchange exchange(std::move(board), rank);
  return connect_cpu_communicator(rank, cluster.world, cluster.epoch, exchange, options);
}
#endif

#if defined(DDPRUN_TEST_OVER_MPI)
// Under mpirun this process is one rank, and worlds of another size are left out.
inline std::vector<std::string> spawn(const Cluster& cluster,
                                      const std::function<void(Communicator&)>& body) {
  const WorkerEnv env = read_worker_env(InitMethod{.needs_store = false});
  if (env.world_size != cluster.world) return {};
  try {
    CommunicatorOptions options;
    options.collective_timeout = cluster.collective_timeout;
    const auto communicator = make_mpi_communicator(env, options);
    body(*communicator);
    communicator->barrier();  // No rank leaves while another still waits for it.
  } catch (const std::exception& error) {
    return {error.what()};
  }
  return {};
}
#else
// Runs `body` on every rank. Returns what each rank's body threw, "" if nothing.
inline std::vector<std::string> spawn(const Cluster& cluster,
                                      const std::function<void(Communicator&)>& body) {
  const auto board = MappedExchange::create(cluster.world);
  std::vector<std::string> errors(static_cast<std::size_t>(cluster.world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < cluster.world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto communicator = connect_rank(cluster, rank, board);
        body(*communicator);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}
#endif

inline void require_no_errors(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) REQUIRE(error == "");
}

// Waits for `count` releases by other ranks. False: they did not come, so that a rank that waits
// for what never happens ends its test with a failure.
inline bool acquire(std::counting_semaphore<>& semaphore, int count) {
  const auto limit = testing::patience(std::chrono::seconds{20});
  while (count > 0 && semaphore.try_acquire_for(limit)) --count;
  return count == 0;
}

}  // namespace ddprun::worker
