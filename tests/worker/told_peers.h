// What the peers of a rank that fails are told, and what it has recorded at the moment when they
// hear of it. Ranks are processes here, since the error file is one per process.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"
#include "tests/worker/communicator_cluster.h"
#include "worker/error_file.h"

namespace ddprun::worker {

constexpr int failing_rank = 1;

// One of three ranks. `seen` gets what a peer was told, and what the failing rank's error file held
// at that moment.
inline void run_told_rank(int rank, Wiring wiring, std::shared_ptr<MappedExchange::Board> board,
                          const testing::TemporaryFolder& folder,
                          const std::function<void(Communicator&)>& body) {
  WorkerEnv env;
  env.error_file = folder / ("error" + std::to_string(rank) + ".json");
  install_error_handlers(env);
  const auto communicator = connect_rank({.world = 3, .wiring = wiring}, rank, std::move(board));
  try {
    body(*communicator);
  } catch (const std::exception& error) {
    if (rank != failing_rank) {
      std::ofstream(folder / ("seen" + std::to_string(rank)))
          << error.what() << '\n'
          << testing::content_of(folder / "error1.json");
    }
    throw;
  }
}

// The texts of ranks 0 and 2, whose `body` is to throw because of rank 1's. What leaves a body is
// recorded, too, but late.
inline std::vector<std::string> seen_by_peers(Wiring wiring,
                                              const std::function<void(Communicator&)>& body) {
  const testing::TemporaryFolder folder;
  const auto board = MappedExchange::create(3);
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    // Or it might wait for a thread that only its parent has.
    ::alarm(static_cast<unsigned>(testing::patience(std::chrono::seconds(60)).count() / 1000));
    try {
      run_told_rank(rank, wiring, board, folder, body);
    } catch (const std::exception& error) {
      record_error(std::string("too late: ") + error.what());
    }
    ::_exit(0);
  }
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  return {testing::content_of(folder / "seen0"), testing::content_of(folder / "seen2")};
}

}  // namespace ddprun::worker
