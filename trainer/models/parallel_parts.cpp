// LibTorch's loop is a header that is parallel only where OpenMP is enabled; this file alone is
// compiled so, because the precompiled LibTorch header is not.
#include "trainer/models/parallel_parts.h"

#include <ATen/Parallel.h>

namespace ddprun::trainer {

void run_parallel(std::int64_t count, const std::function<void(std::int64_t, std::int64_t)>& work) {
  at::parallel_for(0, count, 1, work);
}

}  // namespace ddprun::trainer
