// Alone, and without LibTorch's other headers: it is compiled again after each commit.
#include "trainer/version.h"

#include <torch/version.h>

#include "build_info.h"

namespace ddprun::trainer {

std::string version_text() {
  return "train " DDPRUN_VERSION " (" DDPRUN_BUILD_INFO ", LibTorch " TORCH_VERSION ", " DDPRUN_NCCL
         ")";
}

}  // namespace ddprun::trainer
