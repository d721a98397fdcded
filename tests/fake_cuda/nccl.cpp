// The functions of libnccl that this project calls, between processes without a GPU. Sums are made
// over the tree of worker/cpu/reduce.h, so that the cases of the CPU's collectives hold here too;
// NCCL's own order is another one.
#include <nccl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/fake_cuda/nccl_comm.h"
#include "tests/fake_cuda/switches.h"
#include "worker/cpu/reduce.h"

using namespace ddprun::fake_cuda;
using ddprun::worker::DataType;
using ddprun::worker::ReduceOp;

namespace {

void die_if_told(const ncclComm* comm, const char* function) {
  const auto told = switched_for("FAKE_NCCL_KILL", comm->rank);
  if (told && *told == function) ::kill(::getpid(), SIGKILL);
}

// A real library would read freed memory here.
void require_alive(const ncclComm* comm, const char* function) {
  if (comm->magic == ncclComm::alive) return;
  std::fprintf(stderr, "fake NCCL: %s of a communicator that was freed\n", function);
  std::abort();
}

// In a call that NCCL allows one thread at a time; only abort may come meanwhile.
class Inside {
 public:
  Inside(ncclComm* comm, const char* function) : comm_(comm) {
    require_alive(comm, function);
    if (!comm->inside.exchange(true)) return;
    std::fprintf(stderr, "fake NCCL: %s while another thread is in a call\n", function);
    std::abort();
  }
  ~Inside() { comm_->inside = false; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  ncclComm* const comm_;
};

// Stays when it was freed, so that a later call of it is noticed.
ncclComm* new_comm() {
  static std::mutex mutex;
  static auto& all = *new std::vector<ncclComm*>;
  const std::lock_guard lock(mutex);
  return all.emplace_back(new ncclComm);
}

DataType type_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat32:
      return DataType::Float32;
    case ncclFloat64:
      return DataType::Float64;
    case ncclFloat16:
      return DataType::Float16;
    case ncclBfloat16:
      return DataType::BFloat16;
    case ncclInt32:
      return DataType::Int32;
    case ncclInt64:
      return DataType::Int64;
    default:
      return DataType::UInt8;
  }
}

ReduceOp op_of(ncclRedOp_t op) {
  return op == ncclAvg   ? ReduceOp::Average
         : op == ncclMax ? ReduceOp::Max
         : op == ncclMin ? ReduceOp::Min
                         : ReduceOp::Sum;
}

std::size_t bytes_of(ncclDataType_t type) {
  switch (type_of(type)) {
    case DataType::Float64:
    case DataType::Int64:
      return 8;
    case DataType::Float32:
    case DataType::Int32:
      return 4;
    case DataType::Float16:
    case DataType::BFloat16:
      return 2;
    default:
      return 1;
  }
}

// What a call does once its arguments are checked: at once, or in the background.
ncclResult_t begin(ncclComm* comm, std::function<ncclResult_t()> work) {
  if (comm->background.joinable()) comm->background.join();
  if (comm->blocking) return comm->state = work();
  comm->state = ncclInProgress;
  comm->background = std::thread([comm, work = std::move(work)] {
    cudaSetDevice(comm->device);  // The null stream is that of a thread's device.
    const ncclResult_t result = work();
    // A kernel may have found an error meanwhile.
    ncclResult_t expected = ncclInProgress;
    comm->state.compare_exchange_strong(expected, result);
  });
  return ncclInProgress;
}

ncclResult_t collective(ncclComm* comm, const char* function, cudaStream_t stream, Kernel kernel) {
  const Inside inside(comm, function);
  die_if_told(comm, function);
  if (comm->revoked || comm->state == ncclInProgress) {
    set_last_error(comm->revoked ? "the communicator was revoked"
                                 : "Attempt to use communicator before the previous operation "
                                   "returned ncclSuccess");
    return comm->revoked ? ncclInvalidUsage : ncclInvalidArgument;
  }
  if (comm->state != ncclSuccess) return comm->state;
  return begin(comm, [=, kernel = std::move(kernel)] { return launch(*comm, kernel, stream); });
}

void end(ncclComm* comm) {
  if (comm->background.joinable()) comm->background.join();
  const auto sleep = [] { std::this_thread::sleep_for(std::chrono::microseconds{100}); };
  while (comm->queued > 0) sleep();
  while (comm->graphs > 0) sleep();  // Whether aborted or not, as in commDestroySync.
  if (comm->board != nullptr) unmap_board(comm->board);
  comm->board = nullptr;
  comm->magic = 0;  // Not freed, so that its use can be told of.
}

struct Mappings {
  std::mutex mutex;
  std::map<void*, std::size_t> bytes;
};
Mappings& mappings() {
  static Mappings all;
  return all;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = static_cast<int>(number_of(switched("FAKE_NCCL_VERSION"), NCCL_VERSION_CODE));
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}
const char* ncclGetLastError(ncclComm_t) { return last_error(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = create_board();
  return id->internal[0] != '\0' ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int world, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (world < 1 || world > ranks_max || rank < 0 || rank >= world) return ncclInvalidArgument;
  ncclComm* const comm = new_comm();
  comm->rank = rank;
  comm->world = world;
  comm->id = id;
  comm->blocking = config == nullptr || config->blocking != 0;
  cudaGetDevice(&comm->device);
  die_if_told(comm, "ncclCommInitRankConfig");
  *made = comm;
  return begin(comm, [comm] { return join(*comm); });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const Inside inside(comm, "ncclCommGetAsyncError");
  *state = comm->state;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Inside inside(comm, "ncclCommFinalize");
  if (comm->revoked) return ncclInvalidUsage;
  return begin(comm, [comm] {
    const bool idle = comm->wait([comm] { return comm->queued == 0 && comm->graphs == 0; });
    return idle ? ncclSuccess : ncclInternalError;
  });
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  require_alive(comm, "ncclCommDestroy");
  end(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  require_alive(comm, "ncclCommAbort");
  comm->aborted = true;
  end(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  require_alive(comm, "ncclCommRevoke");
  if (comm->revoked.exchange(true)) return ncclInvalidUsage;
  comm->aborted = true;
  comm->wait([] { return true; });
  return comm->state = ncclSuccess;
}

// Mappings of their own, as cuMemMap's: work that is under way when one goes meets an illegal
// address.
ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return ncclUnhandledCudaError;
  const std::lock_guard lock(mappings().mutex);
  mappings().bytes[memory] = bytes;
  *data = memory;
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* data) {
  const std::lock_guard lock(mappings().mutex);
  const auto known = mappings().bytes.extract(data);
  if (known.empty() || ::munmap(data, known.mapped()) != 0) return ncclInvalidArgument;
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, size_t, void** registration) {
  const Inside inside(comm, "ncclCommRegister");
  *registration = data;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void*) {
  const Inside inside(comm, "ncclCommDeregister");
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, "ncclAllReduce", stream, [=](ncclComm& self) {
    const std::size_t bytes = bytes_of(type);
    return self.exchange({1, type, op, 0, count}, send, count, bytes,
                         [&](std::size_t first, std::size_t elements, const void* const* slots) {
                           void* const to = static_cast<char*>(recv) + first * bytes;
                           ddprun::worker::reduce_tree(
                               {slots, static_cast<std::size_t>(self.world)}, {&to, 1}, elements,
                               type_of(type), op_of(op), false);
                         });
  });
}

ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, "ncclReduceScatter", stream, [=](ncclComm& self) {
    const std::size_t bytes = bytes_of(type);
    const auto world = static_cast<std::size_t>(self.world);
    const std::size_t mine = static_cast<std::size_t>(self.rank) * count;
    return self.exchange(
        {2, type, op, 0, count}, send, world * count, bytes,
        [&](std::size_t first, std::size_t elements, const void* const* slots) {
          const std::size_t from = std::max(first, mine);
          const std::size_t until = std::min(first + elements, mine + count);
          if (from >= until) return;
          std::vector<const void*> sources;
          for (std::size_t peer = 0; peer < world; ++peer) {
            sources.push_back(static_cast<const char*>(slots[peer]) + (from - first) * bytes);
          }
          void* const to = static_cast<char*>(recv) + (from - mine) * bytes;
          ddprun::worker::reduce_tree(sources, {&to, 1}, until - from, type_of(type), op_of(op),
                                      false);
        });
  });
}

ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, "ncclAllGather", stream, [=](ncclComm& self) {
    const std::size_t bytes = bytes_of(type);
    return self.exchange({3, type, 0, 0, count}, send, count, bytes,
                         [&](std::size_t first, std::size_t elements, const void* const* slots) {
                           for (int peer = 0; peer < self.world; ++peer) {
                             const auto at = static_cast<std::size_t>(peer) * count + first;
                             std::memcpy(static_cast<char*>(recv) + at * bytes, slots[peer],
                                         elements * bytes);
                           }
                         });
  });
}

ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, "ncclBroadcast", stream, [=](ncclComm& self) {
    const std::size_t bytes = bytes_of(type);
    return self.exchange(
        {4, type, 0, root, count}, self.rank == root ? send : nullptr, count, bytes,
        [&](std::size_t first, std::size_t elements, const void* const* slots) {
          std::memcpy(static_cast<char*>(recv) + first * bytes, slots[root], elements * bytes);
        });
  });
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, "ncclSend", stream, [=](ncclComm& self) {
    return self.send({5, type, 0, 0, count}, data, count * bytes_of(type), peer);
  });
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return collective(comm, "ncclRecv", stream, [=](ncclComm& self) {
    return self.receive({5, type, 0, 0, count}, data, count * bytes_of(type), peer);
  });
}

}  // extern "C"
