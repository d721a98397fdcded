// A job in a place of its own, for tests that look for what it leaves behind; and workers that make
// an end hard.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"

namespace ddprun::testing {

// A place for one job: its temporary files, and a mark in the environment by which every process of
// it is found, whatever became of its parents.
class Place {
 public:
  Place() { REQUIRE(std::filesystem::create_directory(folder / "tmp")); }
  ~Place() {  // A test that failed leaves nothing either.
    for (const int pid : processes()) ::kill(pid, SIGKILL);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  std::map<std::string, std::string> variables() const {
    return {{"TMPDIR", folder / "tmp"}, {"JOB_PLACE", folder.path()}};
  }
  bool holds_no_files() const { return std::filesystem::is_empty(folder / "tmp"); }

  std::vector<int> processes() const {
    std::vector<int> found;
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
      std::ifstream file(entry.path() / "environ", std::ios::binary);
      const std::string environment{std::istreambuf_iterator<char>(file), {}};
      if (!contains(environment, "JOB_PLACE=" + folder.path())) continue;
      found.push_back(std::stoi(entry.path().filename()));
    }
    return found;
  }

  // True once no process of the job lives, none born in the meantime either.
  bool is_deserted(std::chrono::milliseconds limit) const {
    const auto deadline = std::chrono::steady_clock::now() + ddprun::testing::patience(limit);
    for (std::vector<int> left; !(left = processes()).empty();) {
      const auto rest =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (rest.count() <= 0 || !wait_until_gone(left, rest)) return false;
    }
    return true;
  }

  TemporaryFolder folder;
};

// What workers say into a named pipe, past the launcher: it tells of them while that is still
// starting others.
class Sayings {
 public:
  explicit Sayings(const std::string& path) {
    REQUIRE(run({"mkfifo", path}, 10s).status == 0);
    pipe_ = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    REQUIRE(pipe_ >= 0);
  }
  ~Sayings() { ::close(pipe_); }
  bool wait_for_lines(std::ptrdiff_t lines, std::chrono::milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + ddprun::testing::patience(limit);
    while (std::count(text_.begin(), text_.end(), '\n') < lines) {
      pollfd watched = {pipe_, POLLIN, 0};
      const auto rest =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now())
              .count();
      if (rest <= 0 || ::poll(&watched, 1, static_cast<int>(rest)) != 1) return false;
      char buffer[4096];
      const ssize_t count = ::read(pipe_, buffer, sizeof buffer);
      if (count > 0) text_.append(buffer, static_cast<std::size_t>(count));
    }
    return true;
  }

 private:
  int pipe_ = -1;
  std::string text_;
};

inline void check_nothing_left(const Place& place) {
  CHECK(place.is_deserted(5s));
  CHECK(place.holds_no_files());
}

inline std::vector<std::string> two_workers(const std::vector<std::string>& options,
                                            const std::string& commands) {
  return launch({"--standalone", "--nproc-per-node", "2"}) + options + shell(read_pid + commands);
}

inline bool wait_for_both_up(Process& job) {
  return job.wait_for_output("up 0", 20s) && job.wait_for_output("up 1", 20s);
}

// Shell commands of workers.
inline const std::string deaf = "trap '' TERM INT HUP QUIT; ";
inline const std::string say_up_and_wait = "echo \"up $RANK pid $pid\"; exec sleep 300";

// Rank 0 ends well and leaves a process behind that hears no signal, from its first moment on; rank
// 1 goes on.
inline const std::string leave_a_child = "if [ $RANK = 0 ]; then " + deaf +
                                         "sleep 300 & echo \"child $! of $pid.\"; exit 0; fi; " +
                                         say_up_and_wait;

// A worker with a process that has left the worker's session and parents, and hears no signal.
inline const std::string start_a_stray =
    "setsid sh -c 'trap \"\" TERM INT HUP QUIT; sleep 300 & echo \"stray $!.\"' < /dev/null; ";

}  // namespace ddprun::testing
