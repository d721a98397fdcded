// A rank that fails says so first: what its peers find at the moment when they hear of it.
#include "worker/declare_failure.h"

#include <filesystem>
#include <stdexcept>

#include "tests/testing/catch.h"
#include "tests/worker/told_peers.h"
#include "worker/peers/abortable.h"

using namespace ddprun::worker;
using ddprun::testing::contains;
using ddprun::testing::content_of;
using ddprun::testing::TemporaryFolder;

namespace refused_calls {

// Its name is what a test looks for in a stack; extern, and never inlined.
[[gnu::noinline]] void average_integers(Communicator& communicator) {
  int number = 0;
  const bool wrong = communicator.rank() == ddprun::worker::failing_rank;
  communicator.all_reduce(&number, 1, DataType::Int32, wrong ? ReduceOp::Average : ReduceOp::Sum);
}

}  // namespace refused_calls

namespace {

// Rank 1 refuses its work, as `train` a checkpoint of another model; the others wait for it.
void refuse(Communicator& communicator) {
  communicator.barrier();
  if (communicator.rank() == failing_rank) {
    throw std::runtime_error("this is a checkpoint of another model");
  }
  communicator.barrier();
}

void check_seen(Wiring wiring, const std::function<void(Communicator&)>& body,
                const std::string& told, const std::string& recorded) {
  for (const std::string& seen : seen_by_peers(wiring, body)) {
    INFO(name_of(wiring) << ": " << seen);
    CHECK(contains(seen, told));
    CHECK(contains(seen, R"("message": ")" + recorded + '"'));
    CHECK_FALSE(contains(seen, "too late"));
  }
}

}  // namespace

TEST_CASE("peers hear why a rank failed when its error file is there already",
          "[worker][declare_failure]") {
  const auto declared = [](Communicator& communicator) {
    try {
      refuse(communicator);
    } catch (const CommunicatorError&) {
      throw;
    } catch (const std::exception& error) {
      declare_failure(&communicator, error.what());
      throw;
    }
  };
  for (const Wiring wiring : wirings) {
    check_seen(wiring, declared, "rank 1 failed: this is a checkpoint of another model",
               "this is a checkpoint of another model");
  }
}

TEST_CASE("peers hear of a call that was refused when it is recorded already",
          "[worker][declare_failure]") {
  const auto null = [](Communicator& communicator) {
    if (communicator.rank() == failing_rank) communicator.send(nullptr, 1, DataType::Int32, 0);
    communicator.barrier();
  };
  const std::string no_average = "rank 1: the average of integers is not an integer: use sum";
  for (const Wiring wiring : wirings) {
    for (const std::string& seen : seen_by_peers(wiring, refused_calls::average_integers)) {
      CHECK(contains(seen, "average_integers"));  // Where it came from.
    }
    check_seen(wiring, refused_calls::average_integers, no_average,
               "all_reduce(count=1, int32, average), call 1 failed on rank 1: " + no_average);
    check_seen(wiring, null, "rank 1: the data is a null pointer",
               "send/recv(count=1, int32), call 1 failed on rank 1: rank 1: the data is a null "
               "pointer");
  }
}

TEST_CASE("what nobody declares is recorded and told by the next call, or by the end",
          "[worker][declare_failure]") {
  for (const bool calls : {true, false}) {
    const auto swallowed = [&](Communicator& communicator) {
      communicator.barrier();
      if (communicator.rank() == failing_rank) {
        communicator.abort_unless_told("rank 1 failed: of what it does not tell");
        if (!calls) return;
      }
      communicator.barrier();
    };
    for (const Wiring wiring : wirings) {
      check_seen(wiring, swallowed, "rank 1 failed: of what it does not tell",
                 "rank 1 failed: of what it does not tell");
    }
  }
}

TEST_CASE("what was kept is not recorded once the group has ended of something else",
          "[worker][declare_failure]") {
  class Group final : public Abortable {
   public:
    void abort(const std::string& reason) noexcept override { record(reason); }
  };
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    WorkerEnv env;
    env.error_file = folder / "error.json";
    install_error_handlers(env);
    Group group;
    group.abort_unless_told("rank 1 failed: a consequence");
    group.abort("rank 0 failed: the cause");
    group.tell_untold();
    ::_exit(group.reason() == "rank 0 failed: the cause" ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK_FALSE(std::filesystem::exists(folder / "error.json"));
}

TEST_CASE("a rank whose exception closes the communicator is said to have failed, not to have left",
          "[worker][declare_failure]") {
  for (const Wiring wiring : wirings) {
    for (const std::string& seen : seen_by_peers(wiring, refuse)) {
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
