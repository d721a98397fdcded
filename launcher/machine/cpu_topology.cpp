// The kernel's files instead of hwloc or NVML, which takes seconds; tests give them as a folder.
#include "launcher/machine/cpu_topology.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "rendezvous/host/control_group.h"
#include "rendezvous/host/kernel_files.h"
#include "rendezvous/parse_number.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;
using rendezvous::first_line_of;
using rendezvous::parse_number;

constexpr int affinity_bits_max = 1 << 17;

// Names of the entries of a folder that begin with `prefix` and go on with a number, by it.
std::map<int, std::string> numbered_entries(const std::string& folder, const std::string& prefix) {
  std::map<int, std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.rfind(prefix, 0) != 0) continue;
    if (const auto number = parse_number<int>(name.substr(prefix.size()))) {
      found.emplace(*number, entry->path().string());
    }
  }
  return found;
}

// A list that one CPU's file gives for its whole group is read once for all of them.
class Groups {
 public:
  // The lowest CPU of the group of `cpu`; the CPU itself when `list` does not name it.
  template <typename List>
  int first_of(int cpu, List list) {
    if (const auto known = firsts_.find(cpu); known != firsts_.end()) return known->second;
    const std::vector<int> members = parse_cpu_list(list());
    if (!std::binary_search(members.begin(), members.end(), cpu)) return firsts_[cpu] = cpu;
    for (const int member : members) firsts_[member] = members.front();
    return members.front();
  }

 private:
  std::map<int, int> firsts_;
};

// The shared_cpu_list of the highest cache that holds data.
std::string last_level_cache(const std::string& cpu_folder) {
  int highest = -1;
  std::string shared;
  for (const auto& [index, folder] : numbered_entries(cpu_folder + "/cache", "index")) {
    const std::string type = first_line_of(folder + "/type");
    const int level = parse_number<int>(first_line_of(folder + "/level")).value_or(-1);
    if ((type != "Unified" && type != "Data") || level <= highest) continue;
    highest = level;
    shared = first_line_of(folder + "/shared_cpu_list");
  }
  return shared;
}

std::map<int, int> nodes_by_cpu(const std::string& root) {
  std::map<int, int> nodes;
  for (const auto& [node, folder] : numbered_entries(root + "/sys/devices/system/node", "node")) {
    for (const int cpu : parse_cpu_list(first_line_of(folder + "/cpulist"))) nodes[cpu] = node;
  }
  return nodes;
}

std::vector<Cpu> read_cpus(const std::string& root, const std::vector<int>& allowed) {
  const std::string folder = root + "/sys/devices/system/cpu";
  const std::vector<int> online = parse_cpu_list(first_line_of(folder + "/online"));
  const std::map<int, int> nodes = nodes_by_cpu(root);
  Groups cores, complexes;
  std::vector<Cpu> cpus;
  for (const int id : allowed) {
    if (!std::binary_search(online.begin(), online.end(), id)) continue;
    const std::string own = fmt::format("{}/cpu{}", folder, id);
    const auto node = nodes.find(id);
    cpus.push_back({
        .id = id,
        .core = cores.first_of(
            id, [&] { return first_line_of(own + "/topology/thread_siblings_list"); }),
        .complex = complexes.first_of(id, [&] { return last_level_cache(own); }),
        .node = node == nodes.end() ? 0 : node->second,  // A kernel without NUMA: one node.
        .socket =
            parse_number<int>(first_line_of(own + "/topology/physical_package_id")).value_or(-1),
    });
  }
  return cpus;
}

struct Gpu {
  std::string uuid;
  std::optional<int> node;
};

// The value behind "NAME:" in a file of the NVIDIA driver.
std::string driver_value(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name + ":", 0) != 0) continue;
    const std::size_t begin = line.find_first_not_of(" \t", name.size() + 1);
    return begin == line.npos ? "" : line.substr(begin, line.find_last_not_of(" \t") - begin + 1);
  }
  return "";
}

// By PCI address, which is CUDA's order among equal GPUs. A container may see the files of GPUs
// whose device it was not given; those do not count.
std::vector<Gpu> read_gpus(const std::string& root, bool single_node) {
  std::map<std::string, Gpu> by_address;
  std::error_code error;
  for (fs::directory_iterator entry(root + "/proc/driver/nvidia/gpus", error), end;
       !error && entry != end; entry.increment(error)) {
    const std::string file = entry->path().string() + "/information";
    std::string address = driver_value(file, "Bus Location");
    const std::string minor = driver_value(file, "Device Minor");
    if (address.empty()) address = entry->path().filename().string();
    if (parse_number<int>(minor) && !fs::exists(root + "/dev/nvidia" + minor, error)) continue;
    std::transform(address.begin(), address.end(), address.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const auto node =
        parse_number<int>(first_line_of(root + "/sys/bus/pci/devices/" + address + "/numa_node"));
    Gpu gpu{.uuid = driver_value(file, "GPU UUID")};
    if (node && *node >= 0) gpu.node = node;
    if (node && *node < 0 && single_node)
      gpu.node = 0;  // The firmware names no node: there is one.
    by_address[address] = gpu;
  }
  std::vector<Gpu> gpus;
  for (auto& [address, gpu] : by_address) gpus.push_back(std::move(gpu));
  return gpus;
}

// As CUDA reads its list: it ends at the first entry that names nothing.
std::vector<std::optional<int>> visible_nodes(const std::vector<Gpu>& gpus,
                                              const std::optional<std::string>& list) {
  std::vector<std::optional<int>> nodes;
  if (!list) {
    for (const Gpu& gpu : gpus) nodes.push_back(gpu.node);
    return nodes;
  }
  for (std::size_t begin = 0; !gpus.empty() && begin <= list->size();) {
    const std::size_t end = std::min(list->find(',', begin), list->size());
    std::string entry = list->substr(begin, end - begin);
    entry.erase(std::remove(entry.begin(), entry.end(), ' '), entry.end());
    begin = end + 1;
    if (const auto index = parse_number<int>(entry)) {
      if (*index < 0 || *index >= static_cast<int>(gpus.size())) break;
      nodes.push_back(gpus[static_cast<std::size_t>(*index)].node);
      continue;
    }
    const bool mig = entry.rfind("MIG-", 0) == 0;
    const std::string uuid = mig ? entry.substr(4, entry.find('/') - 4) : entry;
    const auto gpu = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& candidate) {
      return uuid.rfind("GPU-", 0) == 0 && candidate.uuid.rfind(uuid, 0) == 0;
    });
    if (gpu == gpus.end() && !mig) break;
    nodes.push_back(gpu == gpus.end() ? std::nullopt : gpu->node);
  }
  return nodes;
}

}  // namespace

std::vector<int> allowed_cpus() {
  std::vector<int> allowed;
  for (int count = CPU_SETSIZE; count <= affinity_bits_max; count *= 2) {
    const std::size_t bytes = CPU_ALLOC_SIZE(count);
    cpu_set_t* const set = CPU_ALLOC(count);
    if (set == nullptr) break;
    const bool known = ::sched_getaffinity(0, bytes, set) == 0;
    // The kernel refuses a set that is smaller than its own, and does not tell how large that is.
    const bool too_small = !known && errno == EINVAL;
    for (int cpu = 0; known && cpu < count; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set)) allowed.push_back(cpu);
    }
    CPU_FREE(set);
    if (!too_small) break;
  }
  return allowed;
}

CpuTopology read_cpu_topology(const std::string& root, const std::vector<int>& allowed,
                              const std::optional<std::string>& visible_devices) {
  CpuTopology topology{.cpus = read_cpus(root, allowed)};
  const bool single_node = numbered_entries(root + "/sys/devices/system/node", "node").size() <= 1;
  topology.gpu_nodes = visible_nodes(read_gpus(root, single_node), visible_devices);
  topology.quota = rendezvous::read_control_group(root).cpus;
  return topology;
}

}  // namespace ddprun::launcher
