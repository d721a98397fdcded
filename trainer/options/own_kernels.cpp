// What applies follows from the other options; that they allow what is asked for is
// check_device_options()'s.
#include "trainer/options/own_kernels.h"

#include <utility>

namespace ddprun::trainer {

OwnKernels own_kernels(const TrainOptions& options, bool gpu) {
  const bool channels_last = options.layout != LayoutOption::Nchw;
  // With shards or replicas on a GPU they have not been measured.
  const bool usual = gpu && options.data_parallel == 1 && !options.shards;
  return {.optimizer = options.fused_optimizer.value_or(
              options.cuda_graph || (usual && options.optimizer != OptimizerKind::Lars)),
          .norm = options.fused_norm.value_or(usual && channels_last && !options.sync_batch_norm),
          .pool = options.fused_pool.value_or(usual && channels_last),
          .copies =
              options.working_copies.value_or(usual && options.precision != PrecisionOption::Fp32)};
}

std::string own_kernels_text(const OwnKernels& kernels) {
  std::string text;
  for (const auto& [used, name] :
       {std::pair(kernels.optimizer, "fused-optimizer"), std::pair(kernels.norm, "fused-norm"),
        std::pair(kernels.pool, "fused-pool"), std::pair(kernels.copies, "working-copies")}) {
    if (used) text += (text.empty() ? "" : " ") + std::string(name);
  }
  return text;
}

}  // namespace ddprun::trainer
