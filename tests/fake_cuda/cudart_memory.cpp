// Memory of a device, which is the host's, page-locked memory, and the copies between them.
#include <sys/mman.h>

#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/fake_cuda/cudart_objects.h"
#include "tests/fake_cuda/switches.h"

using namespace ddprun::fake_cuda;

namespace {

constexpr std::size_t page = 4096;
constexpr long memory_usual = 80L << 30;

struct Block {
  std::size_t bytes;
  int device;
  cudaMemoryType type;
};

struct Memory {
  std::mutex mutex;
  std::map<const char*, Block> blocks;  // By their first byte.
  std::map<int, std::size_t> taken;     // By device.
};
Memory& memory() {
  static auto& instance = *new Memory;  // Streams' threads may outlive main.
  return instance;
}

std::size_t total() {
  return static_cast<std::size_t>(number_of(switched("FAKE_CUDA_MEMORY"), memory_usual));
}

// Zeroed mappings, so that who uses memory that was freed meets an illegal address.
cudaError_t take(void** data, std::size_t bytes, cudaMemoryType type) {
  const int device = used_device();
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  bytes = (bytes + page - 1) / page * page;
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  const bool of_device = type == cudaMemoryTypeDevice;
  if (of_device && all.taken[device] + bytes > total()) return told(cudaErrorMemoryAllocation);
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return told(cudaErrorMemoryAllocation);
  if (of_device) all.taken[device] += bytes;
  all.blocks[static_cast<const char*>(mapped)] = {bytes, device, type};
  *data = mapped;
  return cudaSuccess;
}

cudaError_t give_back(void* data, cudaMemoryType type) {
  if (data == nullptr) return cudaSuccess;
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  const auto known = all.blocks.find(static_cast<const char*>(data));
  if (known == all.blocks.end() || known->second.type != type) return told(cudaErrorInvalidValue);
  if (type == cudaMemoryTypeDevice) all.taken[known->second.device] -= known->second.bytes;
  // Of a device that failed memory stays: what it is doing is not waited for.
  if (device_state() == cudaSuccess) ::munmap(data, known->second.bytes);
  all.blocks.erase(known);
  return cudaSuccess;
}

// What the address is part of; of pageable memory and of NCCL's own nothing is known here.
Block block_of(const void* address) {
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  const auto* const byte = static_cast<const char*>(address);
  const auto after = all.blocks.upper_bound(byte);
  if (after == all.blocks.begin()) return {0, 0, cudaMemoryTypeUnregistered};
  const auto& [first, block] = *std::prev(after);
  return byte < first + block.bytes ? block : Block{0, 0, cudaMemoryTypeUnregistered};
}

// A device that failed touches no memory any more: its host has not waited for that.
void give(cudaStream_t stream, Work work) {
  real(stream)->give([work = std::move(work)] {
    if (device_state() == cudaSuccess) work();
  });
}

bool is_pageable(const void* address) {
  return block_of(address).type == cudaMemoryTypeUnregistered;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (const cudaError_t error = outside_graphs()) return error;
  return take(data, bytes, cudaMemoryTypeDevice);
}
cudaError_t cudaFree(void* data) {
  if (const cudaError_t error = outside_graphs(/*of_device=*/true)) return error;
  wait_for_device();
  const cudaError_t error = give_back(data, cudaMemoryTypeDevice);
  return error != cudaSuccess ? error : device_state();
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* all) {
  const int device = used_device();
  const std::lock_guard lock(memory().mutex);
  *all = total();
  *free = *all - memory().taken[device];
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  if (const cudaError_t error = outside_graphs()) return error;
  return take(data, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaFreeHost(void* data) {
  if (const cudaError_t error = outside_graphs(/*of_device=*/true)) return error;
  wait_for_device();
  return give_back(data, cudaMemoryTypeHost);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  const Block block = block_of(address);
  *attributes = {};
  attributes->type = block.type;
  attributes->device = block.type == cudaMemoryTypeUnregistered ? -2 : block.device;
  if (block.type == cudaMemoryTypeUnregistered) return cudaSuccess;
  attributes->devicePointer = const_cast<void*>(address);
  if (block.type == cudaMemoryTypeHost) attributes->hostPointer = attributes->devicePointer;
  return cudaSuccess;
}

cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  if (const cudaError_t error = outside_graphs()) return error;
  used_device();
  std::memset(data, value, bytes);
  return device_state();
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  give(stream, [=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}
// What is to go from the host's pageable memory is copied first, and what comes there is there on
// return; page-locked memory must stay as it is until the copy was made.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const bool from_host = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDefault;
  if (from_host && is_pageable(from)) {
    const auto* const first = static_cast<const char*>(from);
    give(stream, [=, staged = std::vector<char>(first, first + bytes)] {
      std::memcpy(to, staged.data(), bytes);
    });
    return cudaSuccess;
  }
  give(stream, [=] { std::memmove(to, from, bytes); });
  if (kind != cudaMemcpyDeviceToHost || !is_pageable(to)) return cudaSuccess;
  if (real(stream)->recorded) return outside_graph_of(real(stream));
  return real(stream)->synchronize();
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = outside_graphs()) return error;
  if (const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr)) return error;
  return real(nullptr)->synchronize();
}

}  // extern "C"
