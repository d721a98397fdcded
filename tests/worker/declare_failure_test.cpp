// A rank that fails says so first: what its peers find at the moment when they hear of it. Ranks
// are processes here, since the error file is one per process.
#include "worker/declare_failure.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"
#include "tests/worker/communicator_cluster.h"
#include "worker/error_file.h"

using namespace ddprun::worker;
using ddprun::testing::contains;
using ddprun::testing::content_of;
using ddprun::testing::TemporaryFolder;

namespace {

constexpr int failing_rank = 1;

// What a failing rank does about it, before the exception closes its communicator.
enum class Manner { Declared, Silent };

// Rank 1 refuses its work, as `train` a checkpoint of another model; the others wait for it.
// `seen` gets what they were told, and what the failing rank's error file held at that moment.
void run_rank(int rank, const Cluster& cluster, std::shared_ptr<MappedExchange::Board> board,
              Manner manner, const TemporaryFolder& folder) {
  WorkerEnv env;
  env.error_file = folder / ("error" + std::to_string(rank) + ".json");
  install_error_handlers(env);
  const auto comm = connect_rank(cluster, rank, std::move(board));
  try {
    comm->barrier();
    if (rank == failing_rank) throw std::runtime_error("this is a checkpoint of another model");
    comm->barrier();
  } catch (const CommunicatorError& error) {
    std::ofstream(folder / ("seen" + std::to_string(rank))) << error.what() << '\n'
                                                            << content_of(folder / "error1.json");
  } catch (const std::exception& error) {
    if (manner == Manner::Declared) declare_failure(comm.get(), error.what());
    throw;
  }
}

// The texts of ranks 0 and 2.
std::vector<std::string> seen_by_peers(Wiring wiring, Manner manner) {
  const TemporaryFolder folder;
  const Cluster cluster{.world = 3, .wiring = wiring};
  const auto board = MappedExchange::create(cluster.world);
  std::vector<pid_t> children;
  for (int rank = 0; rank < cluster.world; ++rank) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    try {
      run_rank(rank, cluster, board, manner, folder);
    } catch (const std::exception& error) {
      record_error(std::string("too late: ") + error.what());
    }
    ::_exit(0);
  }
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  return {content_of(folder / "seen0"), content_of(folder / "seen2")};
}

}  // namespace

TEST_CASE("peers hear why a rank failed when its error file is there already",
          "[worker][declare_failure]") {
  for (const Wiring wiring : wirings) {
    for (const std::string& seen : seen_by_peers(wiring, Manner::Declared)) {
      INFO(name_of(wiring) << ": " << seen);
      CHECK(contains(seen, "rank 1 failed: this is a checkpoint of another model"));
      CHECK(contains(seen, R"("message": "this is a checkpoint of another model")"));
      CHECK_FALSE(contains(seen, "too late"));
    }
  }
}

TEST_CASE("a rank whose exception closes the communicator is said to have failed, not to have left",
          "[worker][declare_failure]") {
  for (const Wiring wiring : wirings) {
    for (const std::string& seen : seen_by_peers(wiring, Manner::Silent)) {
      INFO(name_of(wiring) << ": " << seen);
      CHECK(contains(seen, "rank 1 failed: an exception ended it"));
    }
  }
}

TEST_CASE("a rank that has met nobody yet only records why it failed",
          "[worker][declare_failure]") {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    WorkerEnv env;
    env.error_file = folder / "error.json";
    install_error_handlers(env);
    declare_failure(nullptr, "no such data");
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  CHECK(contains(content_of(folder / "error.json"), "no such data"));
}
