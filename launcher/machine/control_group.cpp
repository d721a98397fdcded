// A limit of a control group holds for all below it, so the least one on the way to the root
// counts.
#include "launcher/machine/control_group.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

#include "launcher/machine/kernel_files.h"

namespace ddprun::launcher {
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
void take_memory(const std::string& folder, const char* limit_file, const char* used_file,
                 const char* cache_name, ControlGroup& group) {
  const auto limit = number_of_file(folder + limit_file);
  if (!limit || *limit >= std::min(beyond_any_memory, group.memory_max)) return;
  group.memory_max = *limit;
  const std::uint64_t used = number_of_file(folder + used_file).value_or(0);
  const std::uint64_t cache = named_number(folder + "/memory.stat", cache_name).value_or(0);
  group.memory_used = used - std::min(used, cache);
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
    take_memory(folder, "/memory.max", "/memory.current", "inactive_file ", group);
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
      take_memory(folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                  "total_inactive_file ", group);
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

}  // namespace ddprun::launcher
