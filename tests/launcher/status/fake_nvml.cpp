// NVIDIA's management library as far as the launcher calls it, without a GPU: what it tells stands
// in the file that FAKE_NVML names, a line for each GPU:
//   UUID BUSY_PERCENT USED_BYTES TOTAL_BYTES PID:BYTES ... reasons=40 clock=780 clock_max=1980
//   celsius=92
// "-" in place of a figure, or one of the last four that is left out: the GPU does not tell it.
// `reasons` in hexadecimal digits. A line "hang": the driver does not answer.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int success = 0, invalid_argument = 2, not_supported = 3, insufficient_size = 7,
              is_lost = 15, unknown = 999;

struct Gpu {
  std::string uuid, busy, used, total;
  std::vector<std::string> processes;
  std::map<std::string, std::string> named;
};
std::vector<Gpu> gpus;
bool is_open = false;

struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

unsigned long long number(const std::string& word) {
  return word == "-" ? ~0ULL : std::strtoull(word.c_str(), nullptr, 10);
}

template <class Number>
int tell(void* device, const char* name, int base, Number* value) {
  const auto& named = static_cast<Gpu*>(device)->named;
  const auto found = named.find(name);
  if (found == named.end()) return not_supported;
  *value = static_cast<Number>(std::strtoull(found->second.c_str(), nullptr, base));
  return success;
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default"))) int

FAKE nvmlInit_v2() {
  const char* path = std::getenv("FAKE_NVML");
  std::ifstream file(path ? path : "");
  if (!file) return unknown;
  gpus.clear();
  for (std::string line; std::getline(file, line);) {
    while (line == "hang") ::pause();
    std::istringstream words(line);
    Gpu gpu;
    words >> gpu.uuid >> gpu.busy >> gpu.used >> gpu.total;
    for (std::string word; words >> word;) {
      const std::size_t sign = word.find('=');
      if (sign == word.npos) {
        gpu.processes.push_back(word);
      } else {
        gpu.named[word.substr(0, sign)] = word.substr(sign + 1);
      }
    }
    gpus.push_back(gpu);
  }
  is_open = true;
  return success;
}

FAKE nvmlShutdown() {
  is_open = false;
  return success;
}

FAKE nvmlDeviceGetCount_v2(unsigned* count) {
  if (!is_open) return unknown;
  *count = static_cast<unsigned>(gpus.size());
  return success;
}

FAKE nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index >= gpus.size()) return invalid_argument;
  if (gpus[index].uuid == "lost") return is_lost;
  *device = &gpus[index];
  return success;
}

FAKE nvmlDeviceGetUUID(void* device, char* text, unsigned length) {
  const std::string& uuid = static_cast<Gpu*>(device)->uuid;
  if (uuid.size() >= length) return insufficient_size;
  std::memcpy(text, uuid.c_str(), uuid.size() + 1);
  return success;
}

FAKE nvmlDeviceGetUtilizationRates(void* device, unsigned* percents) {
  const std::string& busy = static_cast<Gpu*>(device)->busy;
  if (busy == "-") return not_supported;
  percents[0] = static_cast<unsigned>(number(busy));
  percents[1] = 0;
  return success;
}

FAKE nvmlDeviceGetMemoryInfo(void* device, unsigned long long* bytes) {
  const Gpu& gpu = *static_cast<Gpu*>(device);
  if (gpu.used == "-") return not_supported;
  bytes[0] = number(gpu.total);
  bytes[2] = number(gpu.used);
  bytes[1] = bytes[0] - bytes[2];
  return success;
}

FAKE nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, ProcessInfo* rows) {
  const auto& processes = static_cast<Gpu*>(device)->processes;
  const unsigned room = *count;
  *count = static_cast<unsigned>(processes.size());
  if (processes.size() > room) return insufficient_size;
  for (std::size_t i = 0; i < processes.size(); ++i) {
    const std::size_t colon = processes[i].find(':');
    rows[i] = {static_cast<unsigned>(number(processes[i].substr(0, colon))),
               number(processes[i].substr(colon + 1)), 0, 0};
  }
  return success;
}

FAKE nvmlDeviceGetCurrentClocksEventReasons(void* device, unsigned long long* reasons) {
  return tell(device, "reasons", 16, reasons);
}

FAKE nvmlDeviceGetClockInfo(void* device, int kind, unsigned* mhz) {
  return kind == 1 ? tell(device, "clock", 10, mhz) : not_supported;
}

FAKE nvmlDeviceGetMaxClockInfo(void* device, int kind, unsigned* mhz) {
  return kind == 1 ? tell(device, "clock_max", 10, mhz) : not_supported;
}

FAKE nvmlDeviceGetTemperature(void* device, int sensor, unsigned* celsius) {
  return sensor == 0 ? tell(device, "celsius", 10, celsius) : not_supported;
}

FAKE nvmlDeviceGetTotalEccErrors(void* device, int kind, int since, unsigned long long* errors) {
  return kind == 1 && since == 0 ? tell(device, "errors", 10, errors) : not_supported;
}

FAKE nvmlDeviceGetRemappedRows(void* device, unsigned* correctable, unsigned* uncorrectable,
                               unsigned* pending, unsigned* failed) {
  unsigned rows = 0;
  const int result = tell(device, "rows", 10, &rows);
  *correctable = *uncorrectable = 0;
  *pending = rows / 10;
  *failed = rows % 10;
  return result;
}
