// What is found on one machine: each finding by the fact that triggers it, and nothing on a machine
// that is well.
#include "launcher/doctor/machine_findings.h"

#include <algorithm>
#include <functional>

#include "launcher/doctor/gpu_states.h"
#include "launcher/doctor/machine_files.h"
#include "tests/launcher/doctor/healthy_machine.h"
#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using namespace ddprun::testing;
using Level = Finding::Level;

namespace {

constexpr std::uint64_t mib = 1 << 20, gib = 1 << 30;

const MachinePlace among_others = {0, "host-a", false, "10.0.0.1", "ssh reached host-a there"};

struct Spoilt {
  const char* what;
  Level level;
  const char* value;   // A part of it.
  const char* remedy;  // The same.
  std::function<void(MachineFacts&)> spoil;
};

const std::vector<Spoilt>& spoilt_machines() {
  static const std::vector<Spoilt> rows = {
      {"loopback", Level::Red, "is down", "ip link set lo up",
       [](MachineFacts& facts) { facts.loopback_problem = "lo is down"; }},
      {"own name", Level::Amber, "host-a is 127.0.1.1: the loopback", "/etc/hosts",
       [](MachineFacts& facts) { facts.names[0].addresses = {"127.0.1.1"}; }},
      {"own name", Level::Amber, "host-a does not resolve: Name", "/etc/hosts",
       [](MachineFacts& facts) {
         facts.names[0] = {"host-a", {}, "Name or service not known"};
       }},
      {"interface", Level::Amber, "docker0 10.0.0.1, MTU 1500", "~/.ssh/config",
       [](MachineFacts& facts) { facts.interfaces[1].name = "docker0"; }},
      {"NCCL_SOCKET_IFNAME", Level::Red, "eth7 names no interface that is up (there are lo, eth0",
       "unset NCCL_SOCKET_IFNAME", [](MachineFacts& facts) { facts.nccl_interface = "eth7"; }},
      {"NCCL_SOCKET_IFNAME", Level::Red, "ib names no", "ip -br addr",
       [](MachineFacts& facts) { facts.nccl_interface = "ib"; }},  // ib9 is down.
      {"GLOO_SOCKET_IFNAME", Level::Red, "=eth names no", "unset GLOO_SOCKET_IFNAME",
       [](MachineFacts& facts) { facts.gloo_interface = "=eth"; }},
      {"open files", Level::Red, "64 (at most 128)", "ulimit -Hn",
       [](MachineFacts& facts) {
         facts.open_files = {64, 128};
       }},
      {"open files", Level::Amber, "1024 (at most 1024)", "ulimit -Hn",
       [](MachineFacts& facts) {
         facts.open_files = {1'024, 1'024};
       }},
      {"open files", Level::Amber, "256 (at most 65536)", "ulimit -n",
       [](MachineFacts& facts) {
         facts.open_files = {256, 65'536};
       }},
      {"locked memory", Level::Red, "8 MiB", "ulimit -l unlimited",
       [](MachineFacts& facts) { facts.has_infiniband = true; }},
      {"processes", Level::Amber, "100", "ulimit -u",
       [](MachineFacts& facts) {
         facts.processes = {100, 100};
       }},
      {"processes", Level::Amber, "512 (of the control group)", "--pids-limit",
       [](MachineFacts& facts) { facts.cgroup_pids_max = 512; }},
      {"/dev/shm", Level::Amber, "64 MiB, 64 MiB free", "--shm-size=8g",
       [](MachineFacts& facts) {
         facts.shared_memory.bytes = facts.shared_memory.free_bytes = 64 * mib;
       }},
      {"/dev/shm", Level::Amber, "100 MiB free", "ls -l /dev/shm",
       [](MachineFacts& facts) { facts.shared_memory.free_bytes = 100 * mib; }},
      {"/dev/shm", Level::Red, "Permission denied", "mount a tmpfs",
       [](MachineFacts& facts) { facts.shared_memory.problem = "Permission denied"; }},
      {"TMPDIR", Level::Red, "/tmp: No such file", "set TMPDIR",
       [](MachineFacts& facts) { facts.temporary.problem = "No such file or directory"; }},
      {"TMPDIR", Level::Amber, "/job7: No such file or directory; /var/tmp instead", "set TMPDIR",
       [](MachineFacts& facts) {
         facts.temporary = {.path = "/job7", .problem = "No such file or directory"};
         facts.temporary_instead = "/var/tmp";
       }},
      {"TMPDIR", Level::Red, "3 MiB free", "set TMPDIR",
       [](MachineFacts& facts) { facts.temporary.free_bytes = 3 * mib; }},
      {"TMPDIR", Level::Red, "no inodes left", "set TMPDIR",
       [](MachineFacts& facts) { facts.temporary.free_files = 0; }},
      {"TMPDIR", Level::Amber, "500 MiB free", "set TMPDIR",
       [](MachineFacts& facts) { facts.temporary.free_bytes = 500 * mib; }},
      {"memory", Level::Amber, "512 MiB free", "end what else runs",
       [](MachineFacts& facts) { facts.memory_available = 512 * mib; }},
      {"memory", Level::Amber, "512 MiB free, of 2 GiB for this control group", "--memory",
       [](MachineFacts& facts) {
         facts.cgroup_memory_max = 2 * gib;
         facts.cgroup_memory_used = 2 * gib - 512 * mib;
       }},
      {"CPUs", Level::Amber, "a quota of 1.5, though 8 CPUs", "--omp-threads auto",
       [](MachineFacts& facts) { facts.cgroup_cpus = 1.5; }},
      {"GPUs", Level::Amber, "2 cards of NVIDIA, and no driver", "modprobe nvidia",
       [](MachineFacts& facts) { facts.gpu.driver = ""; }},
      {"GPUs", Level::Amber, "none, though 4 entries are set", "unset CUDA_VISIBLE_DEVICES",
       [](MachineFacts& facts) {
         facts.gpu = GpuFacts{};
         facts.gpu.count = 4;
       }},
      {"GPUs", Level::Amber, "0 GPUs, driver 550.54.15", "--gpus all",
       [](MachineFacts& facts) { facts.gpu.count = 0; }},
      {"GPUs", Level::Red, "no libcuda.so.1", "container toolkit",
       [](MachineFacts& facts) { facts.gpu.has_driver_library = false; }},
      {"GPUs", Level::Red, "but libcuda is of 535.1.2", "reboot",
       [](MachineFacts& facts) { facts.gpu.driver_library = "535.1.2"; }},
      {"GPUs", Level::Red, "and NVIDIA's driver does not answer", "Xid",
       [](MachineFacts& facts) {
         facts.gpu.is_silent = true;
         facts.gpu.states.clear();
       }},
      {"GPU 1", Level::Red, "does not answer", "leave it out of CUDA_VISIBLE_DEVICES",
       [](MachineFacts& facts) { facts.gpu.states[1] = {.index = 1, .answers = false}; }},
      {"GPU 1", Level::Red, "no spare memory left", "replace it",
       [](MachineFacts& facts) {
         facts.gpu.states[1].memory_errors = 3;
         facts.gpu.states[1].needs_reset = facts.gpu.states[1].is_worn_out = true;
       }},
      {"GPU 1", Level::Amber, "a reset would take out of use", "--gpu-reset",
       [](MachineFacts& facts) {
         facts.gpu.states[1].memory_errors = 3;
         facts.gpu.states[1].needs_reset = true;
       }},
      {"GPU 0", Level::Amber, "1 uncorrectable memory error since", "-d ECC",
       [](MachineFacts& facts) { facts.gpu.states[0].memory_errors = 1; }},
      {"GPU 0", Level::Amber, "is slowed down by heat: 92 C", "-d PERFORMANCE",
       [](MachineFacts& facts) { facts.gpu.states[0].slowed = "by heat: 92 C"; }},
      {"GPU 1", Level::Amber, "71 GiB of 80 GiB are in use, by pid 4127 and 1 more", "nvidia-smi",
       [](MachineFacts& facts) {
         facts.gpu.states[1].memory_used = 71 * gib;
         facts.gpu.states[1].pids = {4127, 4128};
       }},
      {"GPU 1", Level::Amber, "5 GiB of 80 GiB are in use", "CUDA_VISIBLE_DEVICES",
       [](MachineFacts& facts) { facts.gpu.states[1].memory_used = 5 * gib; }},
      {"secret", Level::Amber, "may be read by others", "chmod 600 /home/me",
       [](MachineFacts& facts) { facts.secret_problem = "it may be read by others"; }},
  };
  return rows;
}

Findings not_green(const Findings& findings) {
  Findings bad;
  std::copy_if(findings.begin(), findings.end(), std::back_inserter(bad),
               [](const Finding& finding) { return finding.level != Level::Green; });
  return bad;
}

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

}  // namespace

TEST_CASE("17.3: a machine that is well has nothing but green", "[doctor]") {
  for (const bool has_gpus : {true, false}) {
    MachineFacts facts = healthy_machine("host-a", 0);
    if (!has_gpus) facts.gpu = GpuFacts{};
    const Findings findings = examine_machine(facts, among_others);
    CHECK(not_green(findings).empty());
    CHECK(findings.size() >= 12);
    for (const Finding& finding : findings) CHECK(!finding.value.empty());
  }
}

TEST_CASE("17.3: each thing that is wrong with a machine is found, alone, with a remedy",
          "[doctor]") {
  for (const Spoilt& row : spoilt_machines()) {
    MachineFacts facts = healthy_machine("host-a", 0);
    row.spoil(facts);
    const Findings bad = not_green(examine_machine(facts, among_others));
    INFO(row.what << ": " << row.value);
    REQUIRE(bad.size() == 1);
    INFO(bad[0].what << ": " << bad[0].value << " / " << bad[0].remedy);
    CHECK(bad[0].what == row.what);
    CHECK(bad[0].level == row.level);
    CHECK(contains(bad[0].value, row.value));
    CHECK(contains(bad[0].remedy, row.remedy));
    CHECK(!bad[0].reason.empty());
    CHECK(bad[0].hosts == std::vector<int>{0});
  }
}

TEST_CASE("17.3: what is a plain fact of a machine alone is green", "[doctor]") {
  MachineFacts facts = healthy_machine("host-a", 0);
  facts.gpu = GpuFacts{};
  facts.names[0].addresses = {"127.0.1.1"};
  facts.secret_proof = "";
  facts.nccl_interface = "^docker,lo";
  facts.gloo_interface = "eth0";
  const Findings findings = examine_machine(facts, {0, "host-a", true, "", ""});
  CHECK(not_green(findings).empty());
  const auto says = [&](const char* words) {
    return std::any_of(findings.begin(), findings.end(),
                       [&](const Finding& finding) { return contains(finding.value, words); });
  };
  CHECK(says("none"));
  CHECK(says("which would matter with several hosts"));
  CHECK(says("none yet; made when one is needed"));
  CHECK(says("to other hosts eth0"));
}

TEST_CASE("17.3: the driver's version and the cards are read from files", "[doctor]") {
  const TemporaryFolder root;
  GpuFacts gpu;
  read_gpu_files(root.path(), gpu);
  CHECK(gpu.driver.empty());
  CHECK(gpu.cards == 0);
  write(root / "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n");
  write(root / "sys/bus/pci/devices/0/class", "0x030200\n");
  write(root / "sys/bus/pci/devices/0/vendor", "0x10de\n");
  write(root / "sys/bus/pci/devices/1/class", "0x030000\n");
  write(root / "sys/bus/pci/devices/1/vendor", "0x8086\n");
  read_gpu_files(root.path(), gpu);
  CHECK(gpu.driver == "550.54.15");
  CHECK(gpu.cards == 1);
  write(root / "proc/net/route", "Iface Destination\neth1 0000FEA9 0\neth0 00000000 0\n");
  CHECK(read_default_interface(root.path()) == "eth0");
  write(root / "proc/meminfo", "MemTotal: 9 kB\nMemAvailable:     2048 kB\n");
  CHECK(read_available_memory(root.path()) == 2 * mib);
}

TEST_CASE("17.3: a job's GPUs are those that CUDA_VISIBLE_DEVICES leaves", "[doctor]") {
  const std::vector<GpuReading> gpus = {
      {.uuid = "GPU-aa", .memory_used = 5, .memory_total = 9, .running = {{.pid = 7}, {.pid = 8}}},
      {.answers = false},
      {.uuid = "GPU-cc",
       .clock = {Slowdown::Heat, -1, -1, 92},
       .memory_errors = 2,
       .needs_reset = true,
       .is_worn_out = true},
      {.uuid = "GPU-dd", .clock = {Slowdown::PowerLimit, -1, -1, 60}}};
  const auto indices = [&](const std::optional<std::string>& visible) {
    std::vector<int> all;
    for (const GpuState& state : gpu_states(gpus, visible)) all.push_back(state.index);
    return all;
  };
  CHECK(indices(std::nullopt) == std::vector{0, 1, 2, 3});
  CHECK(indices("") == std::vector<int>{});
  CHECK(indices("3,GPU-a,9,MIG-GPU-1/2/3") == std::vector{3, 0});

  const auto states = gpu_states(gpus, std::nullopt);
  CHECK(states[0].pids == std::vector{7, 8});
  CHECK(states[0].memory_used == 5);
  CHECK(states[0].memory_total == 9);
  CHECK(states[0].memory_errors == 0);
  CHECK_FALSE(states[1].answers);
  CHECK(states[1].memory_used == 0);
  CHECK(states[2].slowed == "by heat: 92 C");
  CHECK(states[2].memory_errors == 2);
  CHECK(states[2].needs_reset);
  CHECK(states[2].is_worn_out);
  CHECK(states[3].slowed.empty());  // Usual at full load.
}

TEST_CASE("17.3: sizes have few digits", "[doctor]") {
  CHECK(size_text(64 * mib) == "64 MiB");
  CHECK(size_text(gib + gib / 2) == "1.5 GiB");
  CHECK(size_text(0) == "0 KiB");
  CHECK(size_text(no_limit) == "unlimited");
}
