// What is read of a machine: from small trees of files, and from this one.
#include "launcher/machine/cpu_topology.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::launcher;

namespace {

using Nodes = std::vector<std::optional<int>>;

// A machine as files.
class Machine {
 public:
  std::string root() const { return folder_.path(); }

  void file(const std::string& path, const std::string& text) const {
    const std::filesystem::path full = folder_.path() + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  void cpu(int id, int socket, const std::string& siblings, const std::string& cache) const {
    const std::string own = "/sys/devices/system/cpu/cpu" + std::to_string(id);
    file(own + "/topology/physical_package_id", std::to_string(socket) + "\n");
    file(own + "/topology/thread_siblings_list", siblings + "\n");
    level(own + "/cache/index0", "Data", 1, siblings);
    level(own + "/cache/index1", "Instruction", 1, siblings);
    level(own + "/cache/index2", "Unified", 2, siblings);
    level(own + "/cache/index3", "Unified", 3, cache);
  }
  void online(const std::string& list) const {
    file("/sys/devices/system/cpu/online", list + "\n");
  }
  void node(int number, const std::string& list) const {
    file("/sys/devices/system/node/node" + std::to_string(number) + "/cpulist", list + "\n");
  }
  void gpu(const std::string& address, int minor, const std::string& uuid, int node) const {
    file("/proc/driver/nvidia/gpus/" + address + "/information",
         "Model: \t\t NVIDIA H100\nIRQ:   \t\t 5\nGPU UUID: \t " + uuid + "\nBus Location: \t " +
             address + "\nDevice Minor: \t " + std::to_string(minor) + "\n");
    file("/sys/bus/pci/devices/" + address + "/numa_node", std::to_string(node) + "\n");
    file("/dev/nvidia" + std::to_string(minor), "");
  }
  CpuTopology read(const std::string& allowed,
                   const std::optional<std::string>& visible = std::nullopt) const {
    return read_cpu_topology(root(), parse_cpu_list(allowed), visible);
  }

 private:
  void level(const std::string& index, const std::string& type, int number,
             const std::string& shared) const {
    file(index + "/type", type + "\n");
    file(index + "/level", std::to_string(number) + "\n");
    file(index + "/shared_cpu_list", shared + "\n");
  }
  ddprun::testing::TemporaryFolder folder_;
};

// Two sockets of two nodes of one core of two threads, a cache for each node.
struct BigMachine : Machine {
  BigMachine() {
    online("0-7");
    for (int core = 0; core < 4; ++core) {
      const std::string both = std::to_string(core) + "," + std::to_string(core + 4);
      cpu(core, core / 2, both, both);
      cpu(core + 4, core / 2, both, both);
      node(core, both);
    }
  }
};

}  // namespace

TEST_CASE("one socket of two cores is read", "[cpu]") {
  const Machine machine;
  machine.online("0-1");
  machine.cpu(0, 0, "0", "0-1");
  machine.cpu(1, 0, "1", "0-1");
  machine.node(0, "0-1");

  const auto cpus = machine.read("0-1").cpus;

  REQUIRE(cpus.size() == 2);
  CHECK(cpus[1].id == 1);
  CHECK(cpus[1].core == 1);
  CHECK(cpus[1].complex == 0);  // The level above 2 counts, and no instruction cache.
  CHECK(cpus[1].node == 0);
  CHECK(cpus[1].socket == 0);
}

TEST_CASE("threads, nodes and sockets are told apart", "[cpu]") {
  const auto cpus = BigMachine().read("0-7").cpus;

  REQUIRE(cpus.size() == 8);
  CHECK(cpus[7].core == 3);
  CHECK(cpus[7].complex == 3);
  CHECK(cpus[7].node == 3);
  CHECK(cpus[7].socket == 1);
  CHECK(cpus[5].socket == 0);
}

TEST_CASE("CPUs that are offline or not allowed are not there", "[cpu]") {
  const BigMachine machine;
  machine.online("0-2,4-6");

  const auto cpus = machine.read("1-3,6").cpus;

  REQUIRE(cpus.size() == 3);
  CHECK(cpus[0].id == 1);
  CHECK(cpus[1].id == 2);
  CHECK(cpus[2].id == 6);
}

TEST_CASE("without sysfs nothing is known, and nothing fails", "[cpu]") {
  const Machine machine;

  const CpuTopology topology = machine.read("0-3", "0");

  CHECK(topology.cpus.empty());
  CHECK(topology.gpu_nodes.empty());
}

TEST_CASE("files that are missing or odd leave a CPU alone in its core and node 0", "[cpu]") {
  const Machine machine;
  machine.online("0-1");
  machine.file("/sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "7-8,nonsense\n");
  machine.file("/sys/devices/system/cpu/cpu1/topology/physical_package_id", "many\n");
  machine.file("/sys/devices/system/cpu/cpu1/cache/index0/level", "\n");
  machine.file("/sys/devices/system/node/nodes", "not a folder");

  const auto cpus = machine.read("0-1").cpus;

  REQUIRE(cpus.size() == 2);
  CHECK(cpus[1].core == 1);
  CHECK(cpus[1].complex == 1);
  CHECK(cpus[1].node == 0);
  CHECK(cpus[1].socket == -1);
}

TEST_CASE("GPUs are in the order of their addresses, which is CUDA's", "[cpu]") {
  const BigMachine machine;
  machine.gpu("0000:C1:00.0", 0, "GPU-cc", 3);
  machine.gpu("0000:17:00.0", 1, "GPU-aa", 0);
  std::filesystem::rename(machine.root() + "/sys/bus/pci/devices/0000:C1:00.0",
                          machine.root() + "/sys/bus/pci/devices/0000:c1:00.0");

  CHECK(machine.read("0-7").gpu_nodes == Nodes{0, 3});
}

TEST_CASE("CUDA_VISIBLE_DEVICES names GPUs by number or identity", "[cpu]") {
  const BigMachine machine;
  machine.gpu("0000:17:00.0", 0, "GPU-aa11", 0);
  machine.gpu("0000:31:00.0", 1, "GPU-bb22", 1);
  machine.gpu("0000:c1:00.0", 2, "GPU-cc33", 2);
  const auto visible = [&](const std::string& list) { return machine.read("0-7", list).gpu_nodes; };

  CHECK(visible("2,0") == Nodes{2, 0});
  CHECK(visible("GPU-cc33, GPU-bb") == Nodes{2, 1});
  CHECK(visible("MIG-GPU-bb22/1/0,MIG-1234,1") == Nodes{1, std::nullopt, 1});
  CHECK(visible("1,-1,2") == Nodes{1});
  CHECK(visible("1,9,2") == Nodes{1});
  CHECK(visible("1,GPU-zz,2") == Nodes{1});
  CHECK(visible("") == Nodes{});
}

TEST_CASE("a GPU whose device file a container was not given does not count", "[cpu]") {
  const BigMachine machine;
  machine.gpu("0000:17:00.0", 0, "GPU-aa", 0);
  machine.gpu("0000:31:00.0", 1, "GPU-bb", 1);
  std::filesystem::remove(machine.root() + "/dev/nvidia0");

  CHECK(machine.read("0-7").gpu_nodes == Nodes{1});
}

TEST_CASE("a GPU without a node is at node 0 only where there is no other", "[cpu]") {
  const BigMachine big;
  big.gpu("0000:17:00.0", 0, "GPU-aa", -1);
  CHECK(big.read("0-7").gpu_nodes == Nodes{std::nullopt});

  const Machine small;
  small.online("0");
  small.node(0, "0");
  small.gpu("0000:17:00.0", 0, "GPU-aa", -1);
  CHECK(small.read("0").gpu_nodes == Nodes{0});
}

TEST_CASE("this machine tells something sensible", "[cpu]") {
  const auto allowed = allowed_cpus();
  REQUIRE_FALSE(allowed.empty());

  for (const Cpu& cpu : read_cpu_topology("", allowed, std::nullopt).cpus) {
    CHECK(std::binary_search(allowed.begin(), allowed.end(), cpu.id));
    CHECK(cpu.core <= cpu.id);
    CHECK(cpu.complex <= cpu.id);
  }
}
