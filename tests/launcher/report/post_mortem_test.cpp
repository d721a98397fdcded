// What the kernel knows of a dead worker, read from folders that look like a machine's.
#include "launcher/report/post_mortem.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::launcher;
using ddprun::testing::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

const std::string v1_mounts =
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
const std::string v2_mounts =
    "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

// A machine that is a folder.
class Machine {
 public:
  void write(const std::string& path, const std::string& text) {
    const fs::path file = root_.path() + path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string path() const { return root_.path(); }

 private:
  TemporaryFolder root_;
};

// Version 2, in /job/step, with a limit on /job.
Machine& with_cgroup_v2(Machine& machine) {
  machine.write("/proc/self/cgroup", "0::/job/step\n");
  machine.write("/proc/self/mountinfo", v2_mounts);
  machine.write("/sys/fs/cgroup/job/step/memory.events", "low 0\noom 0\noom_kill 2\n");
  machine.write("/sys/fs/cgroup/job/step/memory.max", "max\n");
  machine.write("/sys/fs/cgroup/job/memory.events", "low 0\noom 0\noom_kill 7\n");
  machine.write("/sys/fs/cgroup/job/memory.max", "1073741824\n");
  machine.write("/sys/fs/cgroup/job/memory.peak", "1073700000\n");
  return machine;
}

const WorkerEnd killed{.pid = 77, .signal = SIGKILL};

}  // namespace

TEST_CASE("the memory cgroup is found with everything above it", "[post_mortem]") {
  const auto v2 = find_memory_cgroup("0::/user.slice/job\n", v2_mounts);
  CHECK(v2.version_2);
  CHECK(v2.folders == std::vector<std::string>{"/sys/fs/cgroup/user.slice/job",
                                               "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"});

  const auto v1 = find_memory_cgroup("9:name=systemd:/\n4:memory:/docker/ab\n0::/\n", v1_mounts);
  CHECK_FALSE(v1.version_2);
  CHECK(v1.folders == std::vector<std::string>{"/sys/fs/cgroup/memory/docker/ab",
                                               "/sys/fs/cgroup/memory/docker",
                                               "/sys/fs/cgroup/memory"});
}

TEST_CASE("a container sees its own cgroup as the root", "[post_mortem]") {
  const std::string mounts =
      "35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";

  CHECK(find_memory_cgroup("4:memory:/docker/ab\n", mounts).folders ==
        std::vector<std::string>{"/sys/fs/cgroup/memory"});
  CHECK(find_memory_cgroup("4:memory:/docker/ab/x\n", mounts).folders ==
        std::vector<std::string>{"/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/memory"});
  CHECK(find_memory_cgroup("4:memory:/elsewhere\n", mounts).folders ==
        std::vector<std::string>{"/sys/fs/cgroup/memory"});
}

TEST_CASE("a machine without cgroups has none", "[post_mortem]") {
  CHECK(find_memory_cgroup("", "").folders.empty());
  CHECK(find_memory_cgroup("0::/\n", "").folders.empty());
  CHECK(find_memory_cgroup("nonsense\n\n:::\n", "x - y\n- cgroup2\n").folders.empty());
}

TEST_CASE("counters and amounts are read, and nothing else is", "[post_mortem]") {
  CHECK(counter("oom 1\noom_kill 12\n", "oom_kill") == 12);
  CHECK_FALSE(counter("oom_kill_disable 0\n", "oom_kill"));
  CHECK_FALSE(counter("oom_kill x\n", "oom_kill"));
  CHECK(memory_amount("4096\n") == 4096);
  CHECK_FALSE(memory_amount("max\n"));
  CHECK_FALSE(memory_amount("9223372036854771712\n"));   // Version 1 without a limit.
  CHECK_FALSE(memory_amount("18446744073709551615\n"));  // The same on other page sizes.
  CHECK_FALSE(memory_amount("-1\n"));
  CHECK_FALSE(memory_amount(""));
}

TEST_CASE("an OOM kill is believed when the counter has risen", "[post_mortem]") {
  Machine machine;
  PostMortem post_mortem(with_cgroup_v2(machine).path());
  post_mortem.attempt_starts();
  CHECK_FALSE(post_mortem.examine(killed).oom_killed);

  machine.write("/sys/fs/cgroup/job/step/memory.events", "low 0\noom 1\noom_kill 3\n");

  const KernelFacts facts = post_mortem.examine(killed);
  CHECK(facts.oom_killed);
  CHECK(facts.memory_limit_bytes == 1'073'741'824);
  CHECK(facts.memory_peak_bytes == 1'073'700'000);
  CHECK(post_mortem.examine({.pid = 78, .exit_code = 137}).oom_killed);  // A shell's word for it.
}

TEST_CASE("an OOM kill is believed of nobody else", "[post_mortem]") {
  Machine machine;
  PostMortem post_mortem(with_cgroup_v2(machine).path());
  post_mortem.attempt_starts();
  machine.write("/sys/fs/cgroup/job/step/memory.events", "low 0\noom 1\noom_kill 3\n");

  CHECK_FALSE(post_mortem.examine({.pid = 1, .signal = SIGSEGV}).oom_killed);
  CHECK_FALSE(post_mortem.examine({.pid = 1, .exit_code = 1}).oom_killed);
  WorkerEnd stopped = killed;
  stopped.stopped_by_us = true;
  CHECK_FALSE(post_mortem.examine(stopped).oom_killed);
  post_mortem.attempt_starts();  // What was counted before is another attempt's.
  CHECK_FALSE(post_mortem.examine(killed).oom_killed);
}

TEST_CASE("a kill in a neighbour's cgroup is not ours", "[post_mortem]") {
  Machine machine;
  PostMortem post_mortem(with_cgroup_v2(machine).path());
  post_mortem.attempt_starts();

  machine.write("/sys/fs/cgroup/job/memory.events", "low 0\noom 1\noom_kill 8\n");

  CHECK_FALSE(post_mortem.examine(killed).oom_killed);
}

TEST_CASE("version 1 counts OOM kills too", "[post_mortem]") {
  Machine machine;
  machine.write("/proc/self/cgroup", "4:memory:/job\n0::/\n");
  machine.write("/proc/self/mountinfo", v1_mounts);
  const std::string folder = "/sys/fs/cgroup/memory/job";
  machine.write(folder + "/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
  machine.write(folder + "/memory.limit_in_bytes", "67108864\n");
  machine.write(folder + "/memory.max_usage_in_bytes", "67104768\n");
  machine.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  PostMortem post_mortem(machine.path());
  post_mortem.attempt_starts();
  machine.write(folder + "/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");

  const KernelFacts facts = post_mortem.examine(killed);

  CHECK(facts.oom_killed);
  CHECK(facts.memory_limit_bytes == 67'108'864);
  CHECK(facts.memory_peak_bytes == 67'104'768);
}

TEST_CASE("where nothing can be read, nothing is claimed", "[post_mortem]") {
  PostMortem post_mortem("/nonexistent");
  post_mortem.attempt_starts();

  const KernelFacts facts = post_mortem.examine({.pid = 1, .signal = SIGKILL, .core_dumped = true});

  CHECK_FALSE(facts.oom_killed);
  CHECK(facts.core == "");
}

TEST_CASE("a core pattern says where to look", "[post_mortem]") {
  const CoreSource source{.pid = 77, .signal = 11, .host = "node1", .folder = "/job", .uid = 5};

  CHECK(core_place("core\n", false, source).glob == "/job/core");
  CHECK(core_place("core\n", true, source).glob == "/job/core.77");
  CHECK(core_place("core.%p", true, source).glob == "/job/core.77");
  CHECK(core_place("/cores/%h/%e-%p-%s-%t-%u%%", false, source).glob ==
        "/cores/node1/*-77-11-*-5%");
  CHECK(core_place("a[1]?%", false, source).glob == "/job/a\\[1]\\?");
  CHECK(core_place("", false, source).glob == "");
}

TEST_CASE("a core dump given to a program is told with its name", "[post_mortem]") {
  const CoreSource source{.pid = 77};
  const auto systemd = core_place("|/usr/lib/systemd/systemd-coredump %P %u %g", false, source);
  CHECK(systemd.glob == "");
  CHECK(core_advice(systemd.handler, 77) == "kept by systemd-coredump: coredumpctl info 77");
  CHECK(core_advice(core_place("|/usr/share/apport/apport -p%p", false, source).handler, 77)
            .find("/var/crash") != std::string::npos);
  CHECK(core_advice(core_place("| /opt/grab %p", false, source).handler, 77) ==
        "given to /opt/grab");
}

TEST_CASE("a core dump is named only if it is there and new", "[post_mortem]") {
  Machine machine;
  const WorkerEnd crashed{.pid = 77, .signal = SIGSEGV, .core_dumped = true};
  machine.write("/proc/sys/kernel/core_pattern", machine.path() + "/cores/core.%e.%p\n");
  machine.write("/proc/sys/kernel/core_uses_pid", "1\n");
  PostMortem post_mortem(machine.path());
  post_mortem.attempt_starts();
  CHECK(post_mortem.examine(crashed).core == "");

  machine.write("/cores/core.train.77", "x");
  machine.write("/cores/core.train.78", "x");
  CHECK(post_mortem.examine(crashed).core == machine.path() + "/cores/core.train.77");
  CHECK(post_mortem.examine({.pid = 77, .signal = SIGSEGV}).core == "");  // None was dumped.

  const timespec old[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
  ::utimensat(AT_FDCWD, (machine.path() + "/cores/core.train.77").c_str(), old, 0);
  CHECK(post_mortem.examine(crashed).core == "");
}
