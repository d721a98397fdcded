// A py-spy of the test's own, which says that it was there, and answers when it may.
#include "launcher/status/rank_stacks.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;
using ddprun::testing::contains;
using ddprun::testing::patience;
using ddprun::testing::TemporaryFolder;

namespace {

// ThreadSanitizer has a thread of its own in each process, of which the kernel tells too.
#if defined(__SANITIZE_THREAD__)
constexpr std::size_t sanitizer_threads = 1;
#else
constexpr std::size_t sanitizer_threads = 0;
#endif

// A worker that is called python3, perhaps with one more process below it, until the test ends it.
class PythonWorker {
 public:
  explicit PythonWorker(bool with_loader = false) {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_NAME, "python3");
      int loader = 0;
      if (with_loader && (loader = ::fork()) == 0) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (loader > 0 || !with_loader) {
        const ssize_t told = ::write(ready[1], &loader, sizeof loader);
        static_cast<void>(told);
      }
      for (;;) ::pause();
    }
    REQUIRE(::read(ready[0], &loader_, sizeof loader_) == sizeof loader_);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~PythonWorker() {
    if (loader_ > 0) ::kill(loader_, SIGKILL);
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  PythonWorker(const PythonWorker&) = delete;
  int pid() const { return pid_; }
  int loader() const { return loader_; }

 private:
  pid_t pid_ = -1;
  int loader_ = 0;
};

// First on PATH for the length of a test. In `script` $3 is the process that is looked into; each
// call has left a file of that name in calls/ before.
class FakePySpy {
 public:
  explicit FakePySpy(const std::string& script) : path_(std::getenv("PATH")) {
    std::filesystem::create_directory(folder_ / "calls");
    const std::string program = folder_ / "py-spy";
    std::ofstream(program) << "#!/bin/sh\ncd " << folder_.path() << "\n: > calls/$3\n" << script;
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    ::setenv("PATH", (folder_.path() + ":" + path_).c_str(), 1);
  }
  ~FakePySpy() { ::setenv("PATH", path_.c_str(), 1); }
  FakePySpy(const FakePySpy&) = delete;

  bool looked_into(int pid) const {
    return std::filesystem::exists(folder_ / ("calls/" + std::to_string(pid)));
  }

 private:
  TemporaryFolder folder_;
  std::string path_;
};

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// Of three processes each waits until all three are looked into.
constexpr const char* together =
    "while [ $(ls calls | wc -l) -lt 3 ]; do sleep 0.01; done\necho \"Process $3: python3\"\n";
constexpr const char* never = "exec tail -f /dev/null\n";

}  // namespace

TEST_CASE("17.2: py-spy looks into several processes at a time", "[watch]") {
  const FakePySpy spy(together);
  const PythonWorker one, two(/*with_loader=*/true);
  const auto all =
      worker_stack_lines({{one.pid(), "own stack of one"}, {two.pid(), ""}},
                         std::chrono::duration_cast<std::chrono::milliseconds>(patience(20s)));
  REQUIRE(all.size() == 2);
  CHECK(joined(all[0]) ==
        "    own stack of one\n    Process " + std::to_string(one.pid()) + ": python3\n");
  const std::string loader = std::to_string(two.loader());
  CHECK(joined(all[1]) == "    Process " + std::to_string(two.pid()) +
                              ": python3\n  below it: python3 (pid " + loader + ")\n    Process " +
                              loader + ": python3\n");
}

TEST_CASE("17.2: where py-spy comes to no end in time, the kernel tells of the process",
          "[watch]") {
  const FakePySpy spy(never);
  const PythonWorker worker;
  const auto all = worker_stack_lines({{worker.pid(), "own stack"}}, 20ms);
  REQUIRE(all.size() == 1);
  INFO(joined(all[0]));
  REQUIRE(all[0].size() == 3 + sanitizer_threads);
  CHECK(all[0][0] == "    own stack");
  CHECK(all[0][1] == "    py-spy did not come to its end within 20 ms");
  CHECK(contains(all[0][2], "thread " + std::to_string(worker.pid()) + " python3: "));
}

TEST_CASE("17.2: workers are looked into before what they have started", "[watch]") {
  // As many at a time as there are workers: their loaders have to wait.
  const FakePySpy spy(never);
  std::vector<std::unique_ptr<PythonWorker>> workers;
  std::vector<AskedWorker> asked;
  for (int i = 0; i < 4; ++i) {
    workers.push_back(std::make_unique<PythonWorker>(/*with_loader=*/true));
    asked.push_back({workers.back()->pid(), ""});
  }
  const auto all = worker_stack_lines(asked, 300ms);
  for (const auto& worker : workers) CHECK_FALSE(spy.looked_into(worker->loader()));
  CHECK(joined(all[3]).find("py-spy did not") != joined(all[3]).rfind("py-spy did not"));
}

TEST_CASE("17.2: a py-spy that may not look, or none, leaves the kernel's word", "[watch]") {
  const PythonWorker worker;
  const std::string thread = "thread " + std::to_string(worker.pid()) + " python3: ";
  {
    const FakePySpy spy("exit 1\n");
    const auto lines = worker_stack_lines({{worker.pid(), ""}}, patience(10s)).front();
    CHECK(spy.looked_into(worker.pid()));
    REQUIRE(lines.size() == 1 + sanitizer_threads);
    CHECK(contains(lines[0], thread));
  }
  CHECK(worker_stack_lines({}, 1s).empty());
}

TEST_CASE("17.2: two that ask for Python's stacks at once get both", "[watch]") {
  // As a tracer would, this one tells nothing while another one is there.
  const TemporaryFolder folder;
  const FakePySpy spy("mkdir " + folder.path() + "/traced || exit 1\nsleep 0.05\nrmdir " +
                      folder.path() + "/traced\necho stack");
  const PythonWorker worker;
  std::vector<std::string> lines[2];
  const auto look = [&](int i) {
    lines[i] = worker_stack_lines({{worker.pid(), ""}}, patience(20s)).front();
  };
  std::thread other(look, 0);
  look(1);
  other.join();
  for (const auto& each : lines) CHECK(joined(each) == "    stack\n");
}

TEST_CASE("17.2: a process that waits uninterruptibly is seen, also below the one that is asked",
          "[watch]") {
  const PythonWorker idle;
  CHECK_FALSE(waits_in_kernel(idle.pid()));
  // Whoever starts a process in this way is in such a wait until that one ends.
  const pid_t worker = ::fork();
  if (worker == 0) {
    ::setpgid(0, 0);
    if (::fork() == 0) {
      ::syscall(SYS_clone, CLONE_VFORK | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
    }
    for (;;) ::pause();
  }
  const auto end = std::chrono::steady_clock::now() + patience(20s);
  bool seen = false;
  while (!seen && std::chrono::steady_clock::now() < end) seen = waits_in_kernel(worker);
  CHECK(seen);
  ::kill(-worker, SIGKILL);
  ::waitpid(worker, nullptr, 0);
}
