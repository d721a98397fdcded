// Before training: have all workers been started with the same settings
// (trainer/run_settings.h)?
#pragma once

#include <string>

#include "trainer/device.h"

namespace ddprun::trainer {

// Collective. Throws UsageError on every rank, naming a rank that differs from rank 0, the option
// and both values. `text`: this rank's, of settings_text().
void check_settings(const DeviceAndPeers& place, const std::string& text);

}  // namespace ddprun::trainer
