// No more than words and the end: what this process has is in the hands of a thread that stands
// still.
#include "trainer/watch_devices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <utility>
#include <vector>

#include "trainer/failure_text.h"
#include "worker/declare_failure.h"

namespace ddprun::trainer {
namespace {

constexpr int failure_exit_code = 1;

// Any of them may be the one.
std::string names_of(const std::vector<torch::Device>& devices) {
  std::vector<std::string> names;
  for (const torch::Device& device : devices) names.push_back(device.str());
  return fmt::format("{}", fmt::join(names, " or "));
}

}  // namespace

std::string hung_text(const DeviceWatch::Hang& hang, const std::string& device,
                      const std::optional<std::string>& aborted) {
  const std::string& cause = hang.why.empty() ? aborted.value_or("") : hang.why;
  const double stood_s = std::chrono::duration<double>(hang.stood).count();
  std::string text = fmt::format("{} does not answer: what it was given is not done after {:.0f} s",
                                 device, stood_s);
  if (!hang.in.empty()) text += fmt::format(" (after step {}, in {})", hang.step, hang.in);
  text = cause.empty() ? text : cause + "; " + text;
  if (cause.empty()) {
    text += fmt::format(
        "; --collective-timeout and {} s more are the limit, so give more where a step takes "
        "longer",
        std::chrono::duration_cast<std::chrono::seconds>(DeviceWatch::grace).count());
  }
  // A peer whose GPU hangs too has said it.
  if (cause.find(" does not answer: ") != cause.npos) return text;
  return text +
         ". A GPU that hangs is told of in the kernel's log (dmesg | grep Xid) and by nvidia-smi; "
         "nvidia-smi --gpu-reset or a reboot helps it";
}

std::unique_ptr<DeviceWatch> watch_devices(TrainingJob& job) {
  if (job.place.device.is_cpu()) return nullptr;
  const auto limit = std::chrono::seconds(job.options.collective_timeout_s) + DeviceWatch::grace;
  return std::make_unique<DeviceWatch>(
      question_to(job.place.replicas), limit,
      [&peers = job.communicator(), env = job.env,
       device = names_of(job.place.replicas)](const DeviceWatch::Hang& hang) {
        const bool knew =
            !hang.why.empty();  // And has declared it; there may be no peers any more.
        const std::string text = hung_text(hang, device, knew ? std::nullopt : peers.aborted());
        if (!knew) worker::declare_failure(&peers, text);
        std::cerr << "train: " << with_rank(env, text) << std::endl;
        std::_Exit(failure_exit_code);
      });
}

}  // namespace ddprun::trainer
