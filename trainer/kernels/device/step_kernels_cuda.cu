// The kernels on a GPU: nothing but threads that call the functions of the headers, and the
// queueing of them on a stream. Part of the CUDA module; compiled by nvcc alone, without LibTorch.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdio>

#include "trainer/kernels/device/step_kernels.h"

namespace ddprun::trainer {
namespace {

__device__ KernelPlace here() { return {blockIdx.x, threadIdx.x}; }

__global__ void __launch_bounds__(kernel_threads) sgd_kernel(SgdPass pass) {
  sgd_thread(pass, here());
}

__global__ void __launch_bounds__(kernel_threads) overflow_kernel(SgdPass pass, LossScale* scale) {
  overflow_thread(pass, scale, here());
}

__global__ void advance_kernel(LossScale* scale, LossScaleRule rule) {
  advance_loss_scale(*scale, rule);
}

__global__ void __launch_bounds__(kernel_threads) gather_kernel(GatherBatch batch) {
  gather_thread(batch, here());
}

__global__ void __launch_bounds__(kernel_threads)
    cast_kernel(const __grid_constant__ CastPass pass) {
  cast_thread(pass, here());
}

__global__ void __launch_bounds__(kernel_threads) normalize_kernel(NormalizeBatch batch) {
  normalize_thread(batch, here());
}

__global__ void __launch_bounds__(kernel_threads) resample_kernel(ResampleBatch batch) {
  resample_thread(batch, here());
}

// The three stages of batch normalisation, of a NormForward or a NormBackward.
template <NumberFormat format, typename Pass>
__global__ void __launch_bounds__(kernel_threads) norm_sums_kernel(Pass pass) {
  __shared__ float shared[norm_sums * kernel_threads];
  sum_rows_thread<format>(pass, here(), shared);
  __syncthreads();
  fold_sums_thread(pass.geometry, pass.partial, here(), shared);
}

template <typename Pass>
__global__ void __launch_bounds__(kernel_threads) norm_channels_kernel(Pass pass) {
  __shared__ double shared[2 * kernel_threads];
  add_parts_thread(pass.geometry, pass.partial, here(), shared);
  __syncthreads();
  finish_channel_thread(pass, here(), shared);
}

template <NumberFormat format, typename Pass>
__global__ void __launch_bounds__(kernel_threads) norm_rows_kernel(Pass pass) {
  write_rows_thread<format>(pass, here());
}

// Of a PoolForward or a PoolBackward.
template <NumberFormat format, typename Pass>
__global__ void __launch_bounds__(kernel_threads) pool_kernel(Pass pass) {
  pool_thread<format>(pass, here());
}

// Launches `kernel` on so many blocks; none is no launch, which CUDA would refuse. A grid's first
// side may have 2^31 - 1.
template <typename... Parameters, typename... Arguments>
bool launch(const char* name, void (*kernel)(Parameters...), std::int64_t blocks,
            std::uint32_t threads, void* stream, KernelProblem& problem, Arguments... arguments) {
  if (blocks == 0) return true;
  if (blocks < 0 || blocks > 0x7fffffff) {
    std::snprintf(
        problem.text, sizeof problem.text,
        "the %s kernel was to run in %lld blocks, and a grid has 2147483647 at most: give "
        "a smaller batch",
        name, static_cast<long long>(blocks));
    return false;
  }
  kernel<<<static_cast<unsigned>(blocks), threads, 0, static_cast<cudaStream_t>(stream)>>>(
      arguments...);
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return true;
  std::snprintf(problem.text, sizeof problem.text,
                "the %s kernel could not be queued (%lld blocks of %u threads): %s: %s%s", name,
                static_cast<long long>(blocks), threads, cudaGetErrorName(status),
                cudaGetErrorString(status),
                status == cudaErrorNoKernelImageForDevice
                    ? "; libddprun_cuda.so was built for compute capability 7.5 and newer: "
                      "--no-fused-optimizer --no-fused-norm --no-fused-pool --no-working-copies "
                      "train without its kernels"
                    : "");
  return false;
}

bool sgd(const SgdPass& pass, void* stream, KernelProblem& problem) {
  return launch("SGD", sgd_kernel, pass.chunk_count, kernel_threads, stream, problem, pass);
}

bool find_overflow(const SgdPass& pass, LossScale* scale, void* stream, KernelProblem& problem) {
  return launch("overflow", overflow_kernel, pass.chunk_count, kernel_threads, stream, problem,
                pass, scale);
}

bool advance_scale(LossScale* scale, const LossScaleRule& rule, void* stream,
                   KernelProblem& problem) {
  return launch("loss scale", advance_kernel, 1, 1, stream, problem, scale, rule);
}

bool gather(const GatherBatch& batch, void* stream, KernelProblem& problem) {
  return launch("gather", gather_kernel, batch.count * gather_blocks(batch), kernel_threads, stream,
                problem, batch);
}

bool cast(const CastPass& pass, void* stream, KernelProblem& problem) {
  return launch("cast", cast_kernel, pass.blocks(), kernel_threads, stream, problem, pass);
}

bool normalize(const NormalizeBatch& batch, void* stream, KernelProblem& problem) {
  return launch("normalize", normalize_kernel, normalize_blocks(batch), kernel_threads, stream,
                problem, batch);
}

bool resample(const ResampleBatch& batch, void* stream, KernelProblem& problem) {
  return launch("resample", resample_kernel, batch.count * resample_blocks(batch), kernel_threads,
                stream, problem, batch);
}

template <typename Pass>
bool norm(const Pass& pass, void* stream, KernelProblem& problem) {
  const std::int64_t blocks = norm_blocks(pass.geometry);
  const std::int64_t of_channels = pass.geometry.channels / vector_numbers;
  bool queued = false;
  with_format(pass.format, [&]<NumberFormat format>(Format<format>) {
    queued = launch("batch norm's sums", norm_sums_kernel<format, Pass>, blocks, kernel_threads,
                    stream, problem, pass) &&
             launch("batch norm's channels", norm_channels_kernel<Pass>, of_channels,
                    kernel_threads, stream, problem, pass) &&
             launch("batch norm's rows", norm_rows_kernel<format, Pass>, blocks, kernel_threads,
                    stream, problem, pass);
  });
  return queued;
}

template <typename Pass>
bool pool(const Pass& pass, void* stream, KernelProblem& problem) {
  bool queued = false;
  with_format(pass.format, [&]<NumberFormat format>(Format<format>) {
    queued = launch("max pooling", pool_kernel<format, Pass>, pool_blocks(pass), kernel_threads,
                    stream, problem, pass);
  });
  return queued;
}

}  // namespace
}  // namespace ddprun::trainer

extern "C" __attribute__((visibility("default"))) const ddprun::trainer::StepKernels*
ddprun_step_kernels_6() {
  static constexpr ddprun::trainer::StepKernels kernels{
      ddprun::trainer::sgd,
      ddprun::trainer::find_overflow,
      ddprun::trainer::advance_scale,
      ddprun::trainer::gather,
      ddprun::trainer::cast,
      ddprun::trainer::normalize,
      ddprun::trainer::resample,
      ddprun::trainer::norm<ddprun::trainer::NormForward>,
      ddprun::trainer::norm<ddprun::trainer::NormBackward>,
      ddprun::trainer::pool<ddprun::trainer::PoolForward>,
      ddprun::trainer::pool<ddprun::trainer::PoolBackward>};
  return &kernels;
}
