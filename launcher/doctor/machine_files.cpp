// A limit of a control group holds for all below it, so the least one on the way to the root
// counts.
#include "launcher/doctor/machine_files.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

std::optional<std::uint64_t> number_in(const std::string& text) {
  std::uint64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop == text.data()) return std::nullopt;
  return number;
}

std::optional<std::uint64_t> number_of_file(const std::string& path) {
  return number_in(first_line_of(path));
}

// The line "NAME 123" of a file.
std::optional<std::uint64_t> named_number(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name, 0) != 0 || line.size() <= name.size()) continue;
    const std::size_t digit = line.find_first_of("0123456789", name.size());
    if (digit != line.npos) return number_in(line.substr(digit));
  }
  return std::nullopt;
}

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

constexpr std::uint64_t kBeyondAnyMemory = std::uint64_t{1} << 60;  // Version 1's "no limit".

// Files that are read again are given back when memory runs short, so they are not counted as used.
void take_memory(const std::string& folder, const char* limit_file, const char* used_file,
                 const char* cache_name, MachineFacts& facts) {
  const auto limit = number_of_file(folder + limit_file);
  if (!limit || *limit >= std::min(kBeyondAnyMemory, facts.cgroup_memory_max)) return;
  facts.cgroup_memory_max = *limit;
  const std::uint64_t used = number_of_file(folder + used_file).value_or(0);
  const std::uint64_t cache = named_number(folder + "/memory.stat", cache_name).value_or(0);
  facts.cgroup_memory_used = used - std::min(used, cache);
}

void take_cpus(double quota, double period, MachineFacts& facts) {
  if (quota <= 0 || period <= 0) return;
  const double cpus = quota / period;
  if (facts.cgroup_cpus == 0 || cpus < facts.cgroup_cpus) facts.cgroup_cpus = cpus;
}

void take_pids(const std::string& folder, MachineFacts& facts) {
  if (const auto pids = number_of_file(folder + "/pids.max")) {
    facts.cgroup_pids_max = std::min(facts.cgroup_pids_max, *pids);
  }
}

void read_version_two(const std::string& mount, const std::string& path, MachineFacts& facts) {
  for (const std::string& folder : group_folders(mount, path)) {
    take_memory(folder, "/memory.max", "/memory.current", "inactive_file ", facts);
    take_pids(folder, facts);
    std::istringstream cpu(first_line_of(folder + "/cpu.max"));
    double quota = 0, period = 0;
    if (cpu >> quota >> period) take_cpus(quota, period, facts);  // "max 100000" is no number.
  }
}

void read_version_one(const std::string& mount, const std::string& controller,
                      const std::string& path, MachineFacts& facts) {
  for (const std::string& folder : group_folders(mount, path)) {
    if (controller == "memory") {
      take_memory(folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                  "total_inactive_file ", facts);
    } else if (controller == "pids") {
      take_pids(folder, facts);
    } else {
      const auto quota = number_of_file(folder + "/cpu.cfs_quota_us");  // -1 is no number here.
      const auto period = number_of_file(folder + "/cpu.cfs_period_us");
      if (quota && period) {
        take_cpus(static_cast<double>(*quota), static_cast<double>(*period), facts);
      }
    }
  }
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug ..."; the open module has
// other words before the number.
std::string driver_version(const std::string& line) {
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const bool is_version =
        word.find('.') != word.npos && word.find_first_not_of("0123456789.") == word.npos;
    if (is_version) return word;
  }
  return "";
}

std::string library_version(void* symbol, const std::string& name) {
  Dl_info info{};
  if (::dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return "";
  std::error_code error;
  const std::string file = fs::canonical(info.dli_fname, error).filename();
  if (error || file.rfind(name, 0) != 0) return "";
  const std::string version = file.substr(name.size());
  return version.find('.') != version.npos ? version : "";  // "1" is the ABI's number.
}

}  // namespace

std::string first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

void read_control_group(const std::string& root, MachineFacts& facts) {
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
      read_version_two(mounts, path, facts);
      continue;
    }
    for (std::string one; std::getline(controllers, one, ',');) {
      if (one == "memory" || one == "pids" || one == "cpu") {
        read_version_one(mounts + "/" + one, one, path, facts);
      }
    }
  }
}

void read_gpu_files(const std::string& root, GpuFacts& gpu) {
  gpu.driver = driver_version(first_line_of(root + "/proc/driver/nvidia/version"));
  std::error_code error;
  for (fs::directory_iterator device(root + "/sys/bus/pci/devices", error), end;
       !error && device != end; device.increment(error)) {
    const std::string kind = first_line_of(device->path() / "class");
    const bool is_display = kind.rfind("0x0300", 0) == 0 || kind.rfind("0x0302", 0) == 0;
    if (is_display && first_line_of(device->path() / "vendor") == "0x10de") ++gpu.cards;
  }
}

void ask_gpu_libraries(GpuFacts& gpu) {
  if (void* cuda = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL)) {
    gpu.has_driver_library = true;
    void* symbol = ::dlsym(cuda, "cuDriverGetVersion");  // Works before cuInit().
    int version = 0;
    if (symbol != nullptr && reinterpret_cast<int (*)(int*)>(symbol)(&version) == 0) {
      gpu.cuda = fmt::format("{}.{}", version / 1'000, version % 1'000 / 10);
      gpu.driver_library = library_version(symbol, "libcuda.so.");
    }
  }
  if (void* nccl = ::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL)) {
    void* symbol = ::dlsym(nccl, "ncclGetVersion");
    int version = 0;
    if (symbol != nullptr && reinterpret_cast<int (*)(int*)>(symbol)(&version) == 0) {
      // Until 2.8 it was 2804, since then 20900.
      gpu.nccl =
          version < 10'000
              ? fmt::format("{}.{}.{}", version / 1'000, version % 1'000 / 100, version % 100)
              : fmt::format("{}.{}.{}", version / 10'000, version % 10'000 / 100, version % 100);
    }
  }
}

std::string read_default_interface(const std::string& root) {
  std::ifstream routes(root + "/proc/net/route");
  for (std::string line; std::getline(routes, line);) {
    std::istringstream words(line);
    std::string name, destination;
    if (words >> name >> destination && destination == "00000000") return name;
  }
  return "";
}

std::uint64_t read_available_memory(const std::string& root) {
  const auto kib = named_number(root + "/proc/meminfo", "MemAvailable:");
  return kib ? *kib * 1'024 : no_limit;
}

}  // namespace ddprun::launcher
