// The kernels' own functions, called for each block and thread in turn: the CPU's result is the
// GPU's, and a test of it is a test of every index that the device would compute.
#include <cstddef>
#include <vector>

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
  for_each_thread(pass.blocks(), [&](KernelPlace place) { cast_thread(pass, place); });
  return true;
}

bool normalize(const NormalizeBatch& batch, void*, KernelProblem&) {
  for_each_thread(normalize_blocks(batch),
                  [&](KernelPlace place) { normalize_thread(batch, place); });
  return true;
}

bool resample(const ResampleBatch& batch, void*, KernelProblem&) {
  for_each_thread(batch.count * resample_blocks(batch),
                  [&](KernelPlace place) { resample_thread(batch, place); });
  return true;
}

// One of the kernels whose threads share memory: all of a block's write it before any reads.
template <typename Shared, typename Write, typename Read>
void for_each_block(std::int64_t blocks, std::size_t shared_count, Write write, Read read) {
  std::vector<Shared> shared(shared_count);
  for (std::int64_t block = 0; block < blocks; ++block) {
    KernelPlace place{static_cast<std::uint32_t>(block), 0};
    for (; place.thread < kernel_threads; ++place.thread) write(place, shared.data());
    for (place.thread = 0; place.thread < kernel_threads; ++place.thread) {
      read(place, shared.data());
    }
  }
}

constexpr std::size_t sums_shared = norm_sums * kernel_threads;
constexpr std::size_t parts_shared = std::size_t{2} * kernel_threads;

// NormForward or NormBackward, through its three stages.
template <typename Pass>
bool norm(const Pass& pass, void*, KernelProblem&) {
  const NormGeometry& geometry = pass.geometry;
  with_format(pass.format, [&]<NumberFormat format>(Format<format>) {
    for_each_block<float>(
        norm_blocks(geometry), sums_shared,
        [&](KernelPlace place, float* shared) { sum_rows_thread<format>(pass, place, shared); },
        [&](KernelPlace place, const float* shared) {
          fold_sums_thread(geometry, pass.partial, place, shared);
        });
    for_each_block<double>(
        geometry.channels / vector_numbers, parts_shared,
        [&](KernelPlace place, double* shared) {
          add_parts_thread(geometry, pass.partial, place, shared);
        },
        [&](KernelPlace place, const double* shared) {
          finish_channel_thread(pass, place, shared);
        });
    for_each_thread(norm_blocks(geometry),
                    [&](KernelPlace place) { write_rows_thread<format>(pass, place); });
  });
  return true;
}

template <typename Pass>
bool pool(const Pass& pass, void*, KernelProblem&) {
  with_format(pass.format, [&]<NumberFormat format>(Format<format>) {
    for_each_thread(pool_blocks(pass),
                    [&](KernelPlace place) { pool_thread<format>(pass, place); });
  });
  return true;
}

}  // namespace

const StepKernels& host_step_kernels() {
  static constexpr StepKernels kernels{sgd,
                                       find_overflow,
                                       advance_scale,
                                       gather,
                                       cast,
                                       normalize,
                                       resample,
                                       norm<NormForward>,
                                       norm<NormBackward>,
                                       pool<PoolForward>,
                                       pool<PoolBackward>};
  return kernels;
}

}  // namespace ddprun::trainer
