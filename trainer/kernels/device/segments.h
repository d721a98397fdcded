// How the threads of a kernel share out many tensors or many images, with the arithmetic of its
// indices in plain functions: nvcc compiles them for the device, and the host's compiler for the
// loops of host_kernels.cpp, which take the place of the kernel on the CPU and in tests.
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <vector>

#if defined(__CUDACC__)
#define DDPRUN_HOST_DEVICE __host__ __device__
#else
#define DDPRUN_HOST_DEVICE
#endif

namespace ddprun::trainer {

// In which of a kernel's threads a function is called.
struct KernelPlace {
  std::uint32_t block = 0;
  std::uint32_t thread = 0;
};
inline constexpr std::uint32_t kernel_threads = 256;  // Of a block.

// Elements of one tensor that one block works on: enough that a block's start does not count, few
// enough that small models occupy the device.
inline constexpr std::int64_t chunk_elements = 4096;
struct SegmentChunk {
  std::int64_t begin = 0;
  std::int64_t segment = 0;  // Which tensor.
};

inline std::vector<SegmentChunk> chunks_of(const std::vector<std::int64_t>& counts) {
  std::vector<SegmentChunk> chunks;
  for (std::size_t segment = 0; segment < counts.size(); ++segment) {
    for (std::int64_t begin = 0; begin < counts[segment]; begin += chunk_elements) {
      chunks.push_back({begin, static_cast<std::int64_t>(segment)});
    }
  }
  return chunks;
}

// Calls visit(i) for the elements that this thread has of the chunk, of a tensor of `count`:
// neighbouring threads take neighbouring elements, which the device reads in one go.
template <typename Visit>
DDPRUN_HOST_DEVICE void for_each_element(const SegmentChunk& chunk, std::int64_t count,
                                         KernelPlace place, Visit visit) {
  const std::int64_t end =
      chunk.begin + chunk_elements < count ? chunk.begin + chunk_elements : count;
  for (std::int64_t i = chunk.begin + place.thread; i < end; i += kernel_threads) visit(i);
}

// As for_each_element, but visit_vector(i) for `numbers` neighbours from i on, which a thread can
// read at once; visit(i) for each of those that are left over at a tensor's end.
template <int numbers, typename VisitVector, typename Visit>
DDPRUN_HOST_DEVICE void for_each_vector(const SegmentChunk& chunk, std::int64_t count,
                                        KernelPlace place, VisitVector visit_vector, Visit visit) {
  static_assert(chunk_elements % numbers == 0);  // A chunk begins where a vector does.
  const std::int64_t end =
      chunk.begin + chunk_elements < count ? chunk.begin + chunk_elements : count;
  const std::int64_t rest = end - (end - chunk.begin) % numbers;
  for (std::int64_t i = chunk.begin + std::int64_t{place.thread} * numbers; i < rest;
       i += std::int64_t{kernel_threads} * numbers) {
    visit_vector(i);
  }
  for (std::int64_t i = rest + place.thread; i < end; i += kernel_threads) visit(i);
}

}  // namespace ddprun::trainer
