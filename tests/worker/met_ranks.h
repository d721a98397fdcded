// Ranks as threads that meet through a store of this process, as those of a job meet through their
// launcher's.
#pragma once

#include <asio/io_context.hpp>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/server.h"
#include "worker/worker_env.h"

namespace ddprun::testing {

// What each rank's `body` threw; "" where it returned. Its environment is the rank's own copy.
inline std::vector<std::string> meet_ranks(int world_size,
                                           const std::function<void(worker::WorkerEnv env)>& body) {
  asio::io_context io;
  rendezvous::Server store(io, {}, nullptr);
  std::thread serving([&] { io.run(); });
  std::vector<std::string> errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      worker::WorkerEnv env;
      env.rank = rank;
      env.world_size = world_size;
      env.master_port = store.port();
      try {
        body(env);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  io.stop();
  serving.join();
  return errors;
}

}  // namespace ddprun::testing
