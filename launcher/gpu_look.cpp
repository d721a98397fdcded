// Two limits: people wait a moment, the driver may need longer, as one that is not loaded does.
#include "launcher/gpu_look.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "launcher/machine/nvml.h"
#include "launcher/options/launch_options.h"
#include "launcher/processes/child_sessions.h"

namespace ddprun::launcher {
namespace {

constexpr std::chrono::milliseconds look_pause{1'000};
constexpr std::chrono::milliseconds moment{300};  // Below JobView's limit for other nodes.
constexpr std::chrono::milliseconds driver_limit{20'000};
constexpr std::chrono::milliseconds readings_age_max{5'000};

// CUDA opens /dev/nvidia0 and its siblings; nvidiactl alone is no sign of a GPU.
bool opened_device(int pid) {
  std::error_code error;
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  for (std::filesystem::directory_iterator file(folder, error), end; !error && file != end;
       file.increment(error)) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(file->path(), gone);
    const std::string device = "/dev/nvidia";
    if (target.size() > device.size() && target.rfind(device, 0) == 0 &&
        std::isdigit(static_cast<unsigned char>(target[device.size()]))) {
      return true;
    }
  }
  return false;
}

}  // namespace

GpuLook::GpuLook(asio::io_context& io) : call_(io, "NVIDIA's driver"), patience_(io) {}

void GpuLook::refresh(std::function<void()> done) {
  const auto now = Clock::now();
  if (!asks_ && read_at_ && now - *read_at_ < look_pause) return done();
  waiting_.push_back(std::move(done));
  if (waiting_.size() == 1) {
    patience_.expires_after(moment);
    patience_.async_wait([this](const asio::error_code& error) {
      if (!error) looked();
    });
  }
  if (std::exchange(asks_, true)) return;
  auto readings = std::make_shared<std::vector<GpuReading>>();
  call_.start([readings] { *readings = read_gpus(); }, driver_limit,
              [this, readings](const std::string& why) {
                asks_ = false;
                read_at_ = Clock::now();
                // After the limit the thread may still write to what it was given.
                readings_ = why.empty() ? *readings : std::vector<GpuReading>{};
                patience_.cancel();
                looked();
              });
}

void GpuLook::looked() {
  for (const auto& done : std::exchange(waiting_, {})) done();
}

std::vector<std::optional<GpuUse>> GpuLook::uses(
    const std::vector<int>& worker_pids, const std::optional<std::string>& visible_devices) const {
  const bool is_old = !read_at_ || Clock::now() - *read_at_ > readings_age_max;
  if (is_old || readings_.empty()) return {worker_pids.size(), std::nullopt};
  std::vector<GpuUser> workers;
  for (std::size_t i = 0; i < worker_pids.size(); ++i) {
    GpuUser& worker = workers.emplace_back();
    worker.place = visible_device(static_cast<int>(i), visible_devices);
    for (const ProcessRow& row : read_with_descendants({worker_pids[i]})) {
      worker.pids.push_back(row.pid);
      worker.opened_device = worker.opened_device || opened_device(row.pid);
    }
  }
  return gpus_of(readings_, workers);
}

}  // namespace ddprun::launcher
