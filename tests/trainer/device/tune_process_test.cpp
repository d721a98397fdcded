// How many threads a worker computes with.
#include <ATen/Parallel.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "tests/testing/catch.h"
#include "trainer/device/device.h"

using namespace ddprun;

namespace {

// A quota like a container's, of both versions of control groups, seen by this process alone.
bool see_quota(const std::string& quota_us) {
  const std::string user = std::to_string(::getuid()), group = std::to_string(::getgid());
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  std::ofstream("/proc/self/uid_map") << "0 " + user + " 1";
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/gid_map") << "0 " + group + " 1";
  const std::string groups = "/sys/fs/cgroup";
  if (::mount("none", groups.c_str(), "tmpfs", 0, "") != 0) return false;
  ::mkdir((groups + "/cpu").c_str(), 0700);
  std::ofstream(groups + "/cpu.max") << quota_us << " 100000\n";
  std::ofstream(groups + "/cpu/cpu.cfs_quota_us") << quota_us << '\n';
  std::ofstream period(groups + "/cpu/cpu.cfs_period_us");
  period << "100000\n" << std::flush;
  return period.good();
}

// Of a worker that LibTorch gives four threads; in a process of its own. Nothing: not allowed here.
std::optional<int> threads_with(const std::string& quota_us, int workers_here) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!see_quota(quota_us)) ::_exit(0);
    ::unsetenv("OMP_NUM_THREADS");
    at::set_num_threads(4);
    worker::WorkerEnv env;
    env.local_world_size = workers_here;
    trainer::tune_process(env, /*one_thread=*/false);
    ::_exit(at::get_num_threads());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 0) return std::nullopt;
  return WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("a worker alone computes with no more threads than a quota has CPUs", "[trainer]") {
  const auto one = threads_with("150000", 1);
  if (!one) DDPRUN_SKIP("this user may not mount a file system");
  CHECK(*one == 1);
  CHECK(threads_with("50000", 1) == 1);
  CHECK(threads_with("150000", 2) == 1);
  const int cpus = static_cast<int>(std::thread::hardware_concurrency());
  CHECK(threads_with("-1", 1) == std::min(4, cpus));  // No quota.
}
