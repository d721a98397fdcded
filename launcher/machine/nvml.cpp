// Declared here and not taken from nvml.h: the launcher is built where there is no CUDA. The
// layouts are those of the versioned calls, which NVIDIA keeps.
#include "launcher/machine/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <climits>

#include "rendezvous/parse_number.h"

namespace ddprun::launcher {
namespace {

using Device = void*;
constexpr int success = 0, insufficient_size = 7;
constexpr unsigned gpus_max = 64, processes_max = 1'024;
constexpr unsigned uuid_bytes = 96;
constexpr int temperature_of_gpu = 0, clock_of_multiprocessors = 1;
constexpr int uncorrectable = 1, since_driver_was_loaded = 0;

struct Utilization {
  unsigned gpu_percent, memory_percent;
};
struct Memory {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

template <class Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
}

struct Nvml {
  Nvml() {
    // Never closed: drivers' libraries leave threads and exit handlers behind.
    void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    find(library, "nvmlInit_v2", init);
    find(library, "nvmlShutdown", shutdown);
    find(library, "nvmlDeviceGetCount_v2", count);
    find(library, "nvmlDeviceGetHandleByIndex_v2", device);
    find(library, "nvmlDeviceGetUUID", uuid);
    find(library, "nvmlDeviceGetUtilizationRates", utilization);
    find(library, "nvmlDeviceGetMemoryInfo", memory);
    find(library, "nvmlDeviceGetComputeRunningProcesses_v3", processes);     // Since driver 510.
    find(library, "nvmlDeviceGetCurrentClocksEventReasons", clock_reasons);  // Since driver 535.
    if (!clock_reasons) {
      find(library, "nvmlDeviceGetCurrentClocksThrottleReasons", clock_reasons);
    }
    find(library, "nvmlDeviceGetClockInfo", clock);
    find(library, "nvmlDeviceGetMaxClockInfo", clock_max);
    find(library, "nvmlDeviceGetTemperature", temperature);
    find(library, "nvmlDeviceGetTotalEccErrors", memory_errors);
    find(library, "nvmlDeviceGetRemappedRows", remapped_rows);
    is_whole = init && shutdown && count && device && uuid && utilization && memory;
  }

  bool is_whole = false;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, Device*) = nullptr;
  int (*uuid)(Device, char*, unsigned) = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*processes)(Device, unsigned*, ProcessInfo*) = nullptr;
  // Not needed; null in a library that has no such call.
  int (*clock_reasons)(Device, unsigned long long*) = nullptr;
  int (*clock)(Device, int kind, unsigned* mhz) = nullptr;
  int (*clock_max)(Device, int kind, unsigned* mhz) = nullptr;
  int (*temperature)(Device, int sensor, unsigned* celsius) = nullptr;
  int (*memory_errors)(Device, int kind, int since, unsigned long long*) = nullptr;
  int (*remapped_rows)(Device, unsigned* correctable, unsigned* uncorrectable, unsigned* pending,
                       unsigned* failed) = nullptr;
};

// -1: there is no such call, or the GPU does not tell.
int number_of(int (*ask)(Device, int, unsigned*), Device device, int of) {
  unsigned value = 0;
  if (ask == nullptr || ask(device, of, &value) != success || value > INT_MAX) return -1;
  return static_cast<int>(value);
}

std::vector<GpuProcess> running_on(const Nvml& nvml, Device device) {
  if (nvml.processes == nullptr) return {};
  std::vector<ProcessInfo> rows(16);
  unsigned count = 0;
  int result = insufficient_size;
  while (result == insufficient_size && rows.size() <= processes_max) {
    count = static_cast<unsigned>(rows.size());
    result = nvml.processes(device, &count, rows.data());
    // Between two calls others may come, so not by just as many as were missing.
    if (result == insufficient_size) rows.resize(2 * rows.size());
  }
  if (result != success) return {};
  std::vector<GpuProcess> running;
  for (unsigned i = 0; i < std::min<std::size_t>(count, rows.size()); ++i) {
    constexpr unsigned long long not_available = ~0ULL;
    const bool is_told = rows[i].used_bytes != not_available;
    running.push_back({static_cast<int>(rows[i].pid),
                       is_told ? static_cast<std::int64_t>(rows[i].used_bytes) : -1});
  }
  return running;
}

void read_memory_health(const Nvml& nvml, Device device, GpuReading& reading) {
  unsigned long long errors = 0;
  if (nvml.memory_errors != nullptr &&
      nvml.memory_errors(device, uncorrectable, since_driver_was_loaded, &errors) == success) {
    reading.memory_errors = static_cast<std::int64_t>(errors);
  }
  unsigned rows = 0, bad_rows = 0, pending = 0, failed = 0;
  if (nvml.remapped_rows == nullptr ||
      nvml.remapped_rows(device, &rows, &bad_rows, &pending, &failed) != success) {
    return;
  }
  reading.needs_reset = pending != 0;
  reading.is_worn_out = failed != 0;
}

// What a GPU does not tell, as one that is divided (MIG) does not tell how busy it is, stays
// unknown.
GpuReading read_gpu(const Nvml& nvml, Device device) {
  GpuReading reading;
  char uuid[uuid_bytes] = {};
  if (nvml.uuid(device, uuid, uuid_bytes - 1) == success) reading.uuid = uuid;
  Utilization use{};
  if (nvml.utilization(device, &use) == success) reading.busy = use.gpu_percent / 100.0;
  Memory memory{};
  if (nvml.memory(device, &memory) == success) {
    reading.memory_used = static_cast<std::int64_t>(memory.used);
    reading.memory_total = static_cast<std::int64_t>(memory.total);
  }
  reading.running = running_on(nvml, device);
  unsigned long long reasons = 0;
  if (nvml.clock_reasons != nullptr && nvml.clock_reasons(device, &reasons) == success) {
    reading.clock.slowdown = slowdown_of(reasons);
  }
  reading.clock.mhz = number_of(nvml.clock, device, clock_of_multiprocessors);
  reading.clock.max_mhz = number_of(nvml.clock_max, device, clock_of_multiprocessors);
  reading.clock.celsius = number_of(nvml.temperature, device, temperature_of_gpu);
  read_memory_health(nvml, device, reading);
  return reading;
}

}  // namespace

std::vector<GpuReading> read_gpus() {
  static const Nvml nvml;
  if (!nvml.is_whole || nvml.init() != success) return {};
  unsigned count = 0;
  if (nvml.count(&count) != success) count = 0;
  std::vector<GpuReading> gpus;
  for (unsigned i = 0; i < std::min(count, gpus_max); ++i) {
    Device device = nullptr;
    // One that is not told keeps its number, by which others are found.
    const bool answers = nvml.device(i, &device) == success;
    gpus.push_back(answers ? read_gpu(nvml, device) : GpuReading{.answers = false});
  }
  nvml.shutdown();
  return gpus;
}

std::optional<std::size_t> gpu_at(const std::vector<GpuReading>& gpus, const std::string& place) {
  if (const auto index = rendezvous::parse_number<std::size_t>(place)) {
    return *index < gpus.size() ? index : std::nullopt;
  }
  for (std::size_t i = 0; i < gpus.size() && !place.empty(); ++i) {
    if (gpus[i].uuid.rfind(place, 0) == 0) return i;
  }
  return std::nullopt;
}

}  // namespace ddprun::launcher
