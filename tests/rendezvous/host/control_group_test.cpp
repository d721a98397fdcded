// Limits of control groups in folders like the kernel's.
#include "rendezvous/host/control_group.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::rendezvous;
using namespace ddprun::testing;

namespace {

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

}  // namespace

TEST_CASE("17.3: limits of control groups of both versions are read, the least one counts",
          "[machine]") {
  const TemporaryFolder root;
  const std::string groups = root / "sys/fs/cgroup";
  SECTION("version 2") {
    write(root / "proc/self/cgroup", "0::/job/task\n");
    write(groups + "/job/memory.max", "1073741824\n");
    write(groups + "/job/memory.current", "900000000\n");
    write(groups + "/job/memory.stat", "anon 1\ninactive_file 400000000\n");
    write(groups + "/job/task/memory.max", "max\n");
    write(groups + "/job/task/cpu.max", "150000 100000\n");
    write(groups + "/job/cpu.max", "max 100000\n");
    write(groups + "/job/pids.max", "512\n");
  }
  SECTION("version 1, whose paths a container does not see") {
    write(root / "proc/self/cgroup", "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n2:pids:/d\n");
    write(groups + "/memory/memory.limit_in_bytes", "1073741824\n");
    write(groups + "/memory/memory.usage_in_bytes", "900000000\n");
    write(groups + "/memory/memory.stat", "total_inactive_file 400000000\n");
    write(groups + "/cpu/cpu.cfs_quota_us", "150000\n");
    write(groups + "/cpu/cpu.cfs_period_us", "100000\n");
    write(groups + "/pids/pids.max", "512\n");
  }
  const ControlGroup found = read_control_group(root.path());
  CHECK(found.memory_max == 1'073'741'824);
  CHECK(found.memory_used == 500'000'000);
  CHECK(found.memory_left == 573'741'824);
  CHECK(found.cpus == 1.5);
  CHECK(found.pids_max == 512);
}

TEST_CASE("a machine without control groups limits nothing", "[machine]") {
  const TemporaryFolder root;
  const ControlGroup found = read_control_group(root.path());
  CHECK(found.cpus == 0);
  CHECK(found.memory_max == ControlGroup::unlimited);
  CHECK(found.memory_left == ControlGroup::unlimited);
  CHECK(found.pids_max == ControlGroup::unlimited);
}

TEST_CASE("of a quota whole CPUs can be kept busy, and one at least", "[machine]") {
  CHECK(cpus_at_once({}, 8) == 8);
  CHECK(cpus_at_once({.cpus = 0.5}, 8) == 1);
  CHECK(cpus_at_once({.cpus = 2.9}, 8) == 2);
  CHECK(cpus_at_once({.cpus = 16}, 8) == 8);
  CHECK(cpus_at_once({}, 0) == 1);
}
