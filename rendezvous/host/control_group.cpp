// A limit of a control group holds for all below it, so the least one on the way to the root
// counts.
#include "rendezvous/host/control_group.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

#include "rendezvous/host/kernel_files.h"

namespace ddprun::rendezvous {
namespace {

namespace fs = std::filesystem;

// Its folder and those above it, up to the mount. In a container the path of the host is told,
// which is not there: then the mount itself is the container's group.
std::vector<std::string> group_folders(const std::string& mount, const std::string& path) {
  std::vector<std::string> folders;
  for (std::string rest = path; !rest.empty() && rest != "/";
       rest = rest.substr(0, rest.rfind('/'))) {
    std::error_code error;
    if (fs::is_directory(mount + rest, error)) folders.push_back(mount + rest);
  }
  folders.push_back(mount);
  return folders;
}

constexpr std::uint64_t beyond_any_memory = std::uint64_t{1} << 60;  // Version 1's "no limit".

// Files that are read again are given back when memory runs short, so they are not counted as used.
// Before it kills, the kernel takes back all files and names of files that are kept in memory.
void take_memory(const std::string& folder, const char* limit_file, const char* used_file,
                 const std::string& prefix, ControlGroup& group) {
  const auto limit = number_of_file(folder + limit_file);
  if (!limit || *limit >= beyond_any_memory) return;
  const std::uint64_t used = number_of_file(folder + used_file).value_or(0);
  const auto held = [&](const char* name) {
    return named_number(folder + "/memory.stat", prefix + name).value_or(0);
  };
  const std::uint64_t inactive = held("inactive_file ");
  const std::uint64_t kept = inactive + held("active_file ") + held("slab_reclaimable ");
  const std::uint64_t taken = used - std::min(used, kept);
  group.memory_left = std::min(group.memory_left, *limit - std::min(*limit, taken));
  if (*limit >= group.memory_max) return;
  group.memory_max = *limit;
  group.memory_used = used - std::min(used, inactive);
}

void take_cpus(double quota, double period, ControlGroup& group) {
  if (quota <= 0 || period <= 0) return;
  const double cpus = quota / period;
  if (group.cpus == 0 || cpus < group.cpus) group.cpus = cpus;
}

void take_pids(const std::string& folder, ControlGroup& group) {
  if (const auto pids = number_of_file(folder + "/pids.max")) {
    group.pids_max = std::min(group.pids_max, *pids);
  }
}

void read_version_two(const std::string& mount, const std::string& path, ControlGroup& group) {
  for (const std::string& folder : group_folders(mount, path)) {
    take_memory(folder, "/memory.max", "/memory.current", "", group);
    take_pids(folder, group);
    std::istringstream cpu(first_line_of(folder + "/cpu.max"));
    double quota = 0, period = 0;
    if (cpu >> quota >> period) take_cpus(quota, period, group);  // "max 100000" is no number.
  }
}

void read_version_one(const std::string& mount, const std::string& controller,
                      const std::string& path, ControlGroup& group) {
  for (const std::string& folder : group_folders(mount, path)) {
    if (controller == "memory") {
      take_memory(folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_", group);
    } else if (controller == "pids") {
      take_pids(folder, group);
    } else {
      const auto quota = number_of_file(folder + "/cpu.cfs_quota_us");  // -1 is no number here.
      const auto period = number_of_file(folder + "/cpu.cfs_period_us");
      if (quota && period) {
        take_cpus(static_cast<double>(*quota), static_cast<double>(*period), group);
      }
    }
  }
}

}  // namespace

ControlGroup read_control_group(const std::string& root) {
  ControlGroup group;
  std::ifstream groups(root + "/proc/self/cgroup");
  const std::string mounts = root + "/sys/fs/cgroup";
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string path = line.substr(second + 1);
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    if (first + 1 == second) {
      // Beside controllers of version 1 it is mounted below, and limits nothing.
      read_version_two(mounts, path, group);
      continue;
    }
    for (std::string one; std::getline(controllers, one, ',');) {
      if (one == "memory" || one == "pids" || one == "cpu") {
        read_version_one(mounts + "/" + one, one, path, group);
      }
    }
  }
  return group;
}

int cpus_at_once(const ControlGroup& group, int usable) {
  const bool limited = group.cpus > 0 && group.cpus < usable;
  return std::max(1, limited ? static_cast<int>(group.cpus) : usable);
}

}  // namespace ddprun::rendezvous
