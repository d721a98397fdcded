// Libraries that no linked program needs are opened for their versions alone.
#include "launcher/doctor/machine_files.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "rendezvous/host/kernel_files.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;
using rendezvous::first_line_of;
using rendezvous::named_number;

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
