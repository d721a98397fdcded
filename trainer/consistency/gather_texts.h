// A text of each rank, on all of them.
#pragma once

#include <string>
#include <vector>

#include "worker/communicator.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// Element r is rank r's; any bytes, and of any lengths. `device`: where the communicator's memory
// lies. Collective. Throws worker::CommunicatorError.
std::vector<std::string> gather_texts(worker::Communicator& communicator, torch::Device device,
                                      const std::string& text);

}  // namespace ddprun::trainer
