// The watch over a job's GPUs, and the end of a process whose GPU hangs.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "trainer/device/device_watch.h"
#include "trainer/training_job.h"

namespace ddprun::trainer {

// Null on a CPU. The communicator must stay until the watch is gone, or is told that the job ends.
std::unique_ptr<DeviceWatch> watch_devices(TrainingJob& job);

// Why the process ends. `aborted`: what ended the communicator, if something did.
std::string hung_text(const DeviceWatch::Hang& hang, const std::string& device,
                      const std::optional<std::string>& aborted);

}  // namespace ddprun::trainer
