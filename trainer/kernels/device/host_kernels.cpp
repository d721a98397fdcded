// The kernels' own functions, called for each block and thread in turn: the CPU's result is the
// GPU's, and a test of it is a test of every index that the device would compute.
#include <cstdio>

#include "trainer/kernels/device/step_kernels.h"

namespace ddprun::trainer {
namespace {

template <typename Body>
void for_each_thread(std::int64_t blocks, Body body) {
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (std::uint32_t thread = 0; thread < kernel_threads; ++thread) {
      body(KernelPlace{static_cast<std::uint32_t>(block), thread});
    }
  }
}

bool sgd(const SgdPass& pass, void*, KernelProblem&) {
  for_each_thread(pass.chunk_count, [&](KernelPlace place) { sgd_thread(pass, place); });
  return true;
}

bool find_overflow(const SgdPass& pass, LossScale* scale, void*, KernelProblem&) {
  for_each_thread(pass.chunk_count,
                  [&](KernelPlace place) { overflow_thread(pass, scale, place); });
  return true;
}

bool advance_scale(LossScale* scale, const LossScaleRule& rule, void*, KernelProblem&) {
  advance_loss_scale(*scale, rule);
  return true;
}

bool gather(const GatherBatch& batch, void*, KernelProblem&) {
  for_each_thread(batch.count * gather_blocks(batch),
                  [&](KernelPlace place) { gather_thread(batch, place); });
  return true;
}

bool cast(const CastPass& pass, void*, KernelProblem&) {
  for_each_thread(pass.chunk_count, [&](KernelPlace place) { cast_thread(pass, place); });
  return true;
}

bool normalize(const NormalizeBatch& batch, void*, KernelProblem&) {
  for_each_thread(normalize_blocks(batch),
                  [&](KernelPlace place) { normalize_thread(batch, place); });
  return true;
}

}  // namespace

const StepKernels& host_step_kernels() {
  static constexpr StepKernels kernels{sgd, find_overflow, advance_scale, gather, cast, normalize};
  return kernels;
}

}  // namespace ddprun::trainer
