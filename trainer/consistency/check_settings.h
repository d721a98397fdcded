// Before training: have all workers been started with the same settings
// (trainer/consistency/run_settings.h)?
#pragma once

#include <string>

#include "worker/communicator.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// Collective. Throws UsageError on every rank, naming a rank that differs from rank 0, the option
// and both values. `text`: this rank's, of settings_text(). `device` is the communicator's.
void check_settings(worker::Communicator& communicator, torch::Device device,
                    const std::string& text);

}  // namespace ddprun::trainer
