// Which launcher a watch takes for one that it has seen before.
#include "launcher/watch/found_looks.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "tests/launcher/watch/listening.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::launcher;
using ddprun::testing::Listening;
using ddprun::testing::patience;
using namespace std::chrono_literals;

namespace {

// A folder of launchers that all have this process's pid.
struct Launchers {
  Launchers() {
    ::chmod(folder.path().c_str(), 0700);
    ::setenv("DDPRUN_RUN_DIR", folder.path().c_str(), 1);
  }
  ~Launchers() { ::unsetenv("DDPRUN_RUN_DIR"); }

  // One that was started then takes the place of the one before.
  void start(std::int64_t started_unix_s, const std::string& host = "here") {
    const JobSnapshot job{.run_id = "night",
                          .host = host,
                          .launcher_pid = ::getpid(),
                          .started_unix_s = started_unix_s};
    end();
    ::mkdir(folder.path().c_str(), 0700);  // The last launcher that leaves removes it.
    launcher = std::make_unique<Listening>(folder.path(),
                                           [job](const ddprun::rendezvous::Query&) { return job; });
  }
  void end() { launcher.reset(); }

  ddprun::testing::TemporaryFolder folder;
  std::unique_ptr<Listening> launcher;
};

WatchCommand called(const std::string& job) {
  WatchCommand command;
  command.job = job;
  return command;
}

}  // namespace

TEST_CASE("17.2: a launcher is compared with itself, and not with an earlier one of its pid",
          "[watch]") {
  Launchers launchers;
  FoundLooks found(called(""));
  const auto look_before = [&] {
    found.look(patience(5s));
    REQUIRE(found.looks().size() == 1);
    return found.looks()[0].before;
  };
  launchers.start(100);
  CHECK_FALSE(look_before());
  CHECK(look_before());

  launchers.start(200);
  CHECK_FALSE(look_before());
  CHECK(look_before());
  launchers.start(200, "elsewhere");  // Where an endpoint answers, it may be on another machine.
  CHECK_FALSE(look_before());
}

TEST_CASE("17.2: a silent launcher is no job that an earlier one of its pid had", "[watch]") {
  Launchers launchers;
  FoundLooks found(called("night"));
  launchers.start(100);
  found.look(patience(5s));
  REQUIRE(found.looks().size() == 1);
  launchers.end();
  ::mkdir(launchers.folder.path().c_str(), 0700);

  const auto silent = ddprun::testing::unserved_socket(launchers.folder / "1-silent", true);
  found.look(50ms);

  CHECK(found.notes().empty());
  CHECK_FALSE(found.found());
}
