// A launcher that is killed: in its first moments, when what should clean up after it has hardly
// been started, and by another one, whose worker it is.
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/sem.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tests/end_to_end/job_place.h"
#include "tests/testing/held_signals.h"
#include "tests/testing/patience.h"

using namespace ddprun::testing;
namespace fs = std::filesystem;

namespace {

// Tells of what is made in a folder, when it is made.
class Births {
 public:
  explicit Births(const std::string& folder) : fd_(::inotify_init1(IN_CLOEXEC)) {
    REQUIRE(fd_ >= 0);
    REQUIRE(::inotify_add_watch(fd_, folder.c_str(), IN_CREATE) >= 0);
  }
  ~Births() { ::close(fd_); }
  Births(const Births&) = delete;
  Births& operator=(const Births&) = delete;

  // False: nothing whose name begins so was made in time.
  bool wait_for(const std::string& begin) const {
    const auto limit = static_cast<int>(patience(60s).count());
    alignas(inotify_event) std::array<char, 4096> buffer;
    for (pollfd ready{fd_, POLLIN, 0}; ::poll(&ready, 1, limit) == 1;) {
      const ssize_t size = ::read(fd_, buffer.data(), buffer.size());
      for (ssize_t at = 0; at < size;) {
        const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
        if (event->len > 0 && std::string(event->name).starts_with(begin)) return true;
        at += static_cast<ssize_t>(sizeof(inotify_event)) + event->len;
      }
    }
    return false;
  }

 private:
  int fd_;
};

// The sets of semaphores there are, by their ids.
std::set<int> semaphore_sets() {
  std::set<int> ids;
  std::ifstream table("/proc/sysvipc/sem");
  std::string rest;
  std::getline(table, rest);  // The columns' names.
  for (int key = 0, id = 0; table >> key >> id; std::getline(table, rest)) ids.insert(id);
  return ids;
}

// A ddprun whose worker is a ddprun with two workers, each of which has a child that no signal of
// the kernel's tells of its end.
struct NestedJob {
  explicit NestedJob(const std::vector<std::string>& outer_options)
      : job(launch({"--standalone"}) + outer_options +
                two_workers({}, "sleep 300 & " + say_up_and_wait),
            place.variables()) {
    REQUIRE(wait_for_both_up(job));
    const std::set<int> workers = {number_after(job.output(), "up 0 pid "),
                                   number_after(job.output(), "up 1 pid ")};
    for (const int id : semaphore_sets()) {
      if (workers.contains(::semctl(id, 0, GETPID))) semaphores.insert(id);
    }
  }
  ~NestedJob() {  // A test that failed leaves nothing either.
    for (const int id : semaphores_left()) ::semctl(id, 0, IPC_RMID);
  }
  NestedJob(const NestedJob&) = delete;
  NestedJob& operator=(const NestedJob&) = delete;

  std::set<int> semaphores_left() const {
    std::set<int> left;
    for (const int id : semaphore_sets()) {
      if (semaphores.contains(id)) left.insert(id);
    }
    return left;
  }
  void check_nothing_left() const {
    ddprun::testing::check_nothing_left(place);
    CHECK(semaphores_left().empty());
  }

  const Place place;
  Process job;
  std::set<int> semaphores;  // By which the inner one knows in which order its workers die.
};

}  // namespace

TEST_CASE("a launcher that is killed as it makes its folder leaves none") {
  const TemporaryFolder folder;
  for (int time = 0; time < 20; ++time) {
    const Births births(folder.path());
    Process launcher(launch({"--standalone"}) + shell("exec sleep 300"),
                     {{"TMPDIR", folder.path()}});
    REQUIRE(births.wait_for("ddprun_"));
    ::kill(launcher.pid(), SIGKILL);
    // Its output ends with the last process that has it, the guard.
    CHECK(launcher.wait(60s).status == 137);
    CHECK(launcher.wait_until([&] { return fs::is_empty(folder.path()); }, 20s));
  }
}

TEST_CASE("a launcher within a launcher leaves nothing when the outer one is killed") {
  NestedJob nested({});

  nested.job.send_signal(SIGKILL);

  CHECK(nested.job.wait(30s).ended);
  nested.check_nothing_left();
}

TEST_CASE("a launcher that is killed by the one whose worker it is leaves nothing") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  NestedJob nested({"--shutdown-timeout", "0"});

  nested.job.send_signal(SIGTERM);

  const ProcessResult result = nested.job.wait(30s);
  INFO(result.output);
  CHECK(result.status == 75);
  CHECK_FALSE(contains(result.output, "ddprun-guard"));
  // By now: it waits for the other one's guard.
  CHECK(nested.place.processes().empty());
  nested.check_nothing_left();
}
