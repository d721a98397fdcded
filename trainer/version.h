// What --version says: enough for somebody else to build the same program.
#pragma once

#include <string>

namespace ddprun::trainer {

// "train 0.1.0 (commit 1a2b3c4d5e6f, release build, GNU 12.2.0, LibTorch 2.11.0, NCCL 2.27.3)"
std::string version_text();

}  // namespace ddprun::trainer
