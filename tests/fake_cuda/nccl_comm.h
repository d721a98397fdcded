// A fake communicator: what its kernels do, and what keeps its end waiting.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "tests/fake_cuda/nccl_board.h"

// A kernel of a communicator; false: it was aborted. `call` is the communicator's count of kernels.
using Kernel = std::function<bool(ncclComm& comm)>;

struct ncclComm {
  static constexpr std::uint32_t alive = 0x6e63636c;

  std::uint32_t magic = alive;  // Freed communicators stay in place and are found out by it.
  int rank = 0;
  int world = 1;
  int device = 0;
  bool blocking = true;
  ncclUniqueId id{};
  ddprun::fake_cuda::Board* board = nullptr;

  std::atomic<ncclResult_t> state{ncclInProgress};
  std::atomic<bool> aborted{false};
  std::atomic<bool> inside{false};  // A thread is in a call of it.
  std::atomic<bool> revoked{false};
  std::atomic<int> queued{0};  // Kernels that have not ended.
  std::atomic<int> graphs{0};  // That have recorded kernels of this communicator.
  std::atomic<long> kernels{0};
  std::thread background;  // Of the last call, where calls do not block.
  std::mutex running;      // One kernel at a time.

  std::uint64_t chunks = 0;  // Of collectives so far; under `running`.

  // Waits in a kernel, or in the background; false: aborted.
  bool wait(const std::function<bool()>& condition) const;

  // The collective of `called` for `count` elements of `bytes` each, of which rank r contributes
  // `send`. `take`(first, elements, slots) gets each chunk; where only `root` contributes, others'
  // slots are what they were.
  using Take =
      std::function<void(std::size_t first, std::size_t elements, const void* const* slots)>;
  bool exchange(const ddprun::fake_cuda::Called& called, const void* send, std::size_t count,
                std::size_t bytes, const Take& take);
  bool send(const ddprun::fake_cuda::Called& called, const void* data, std::size_t bytes, int peer);
  bool receive(const ddprun::fake_cuda::Called& called, void* data, std::size_t bytes, int peer);
};

namespace ddprun::fake_cuda {

void set_last_error(const std::string& text);
const char* last_error();

// Meets the others; for the background of ncclCommInitRankConfig.
ncclResult_t join(ncclComm& comm);

// Puts the kernel on the stream, or into the graph that the stream records.
ncclResult_t launch(ncclComm& comm, Kernel kernel, cudaStream_t stream);

}  // namespace ddprun::fake_cuda
