// The collectives over NCCL, and the module's entry point.
#include "worker/nccl/nccl_communicator.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "worker/communicator_modules.h"
#include "worker/nccl/nccl_types.h"
#include "worker/progress_page.h"
#include "worker/wording.h"

namespace ddprun::worker {
namespace {

constexpr auto poll_pause = std::chrono::microseconds{50};
// NCCL needs some 20 us to start a kernel from the background, in which sleeping, of 50 us with the
// kernel's slack of as much again, would be the most of a call.
constexpr auto spin_time = std::chrono::microseconds{100};
// The watchdog knows who keeps a stream, once it has asked them; so it goes first.
constexpr auto watchdog_time = 2 * answer_time;

std::string describe(const NcclPeers& peers) {
  int version = 0;
  ncclGetVersion(&version);
  return "nccl " + std::to_string(version) + ": " + counted(peers.world_size, "rank") +
         ", device " + std::to_string(peers.device);
}

bool is_readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return fd >= 0 && ::poll(&entry, 1, 0) > 0;
}

}  // namespace

NcclCommunicator::NcclCommunicator(NcclPeers peers, const CommunicatorOptions& options)
    : rank_(peers.rank),
      world_size_(peers.world_size),
      timeout_(options.collective_timeout),
      teller_(options),
      description_(describe(peers)),
      handle_(std::make_shared<NcclHandle>(peers.device, end_time(), timeout_ + watchdog_time)),
      watchdog_(rank_, handle_, options),
      group_(std::move(peers.watched), [this] { watchdog_.wake(); }),
      guard_(rank_, world_size_, group_) {
  check_cuda(cudaSetDevice(handle_->device()), "cudaSetDevice");
  try {
    start_nccl(peers, options.interrupt_fd);
    barrier_word_ = allocate(sizeof(int));
    watchdog_.start(group_);
  } catch (const std::exception& problem) {
    group_.abort("rank " + std::to_string(rank_) + ": " + problem.what());  // Or they wait.
    handle_->abort();
    // Its threads read the environment, which who has lost this attempt is about to change.
    handle_->wait_for_end();
    throw;
  }
}

// Nobody who closes a communicator is to wait longer than in a call.
std::chrono::milliseconds NcclCommunicator::end_time() const {
  return std::min(NcclHandle::end_time_usual, timeout_);
}

NcclCommunicator::~NcclCommunicator() {
  if (!owner_.is_this()) return;
  cudaSetDevice(handle_->device());
  const auto deadline = Clock::now() + end_time();
  const bool drained = watchdog_.drain(deadline);
  watchdog_.stop();
  // Before memory is given back: that waits for kernels, and nobody else would end them now.
  if (!drained) {
    group_.abort("rank " + std::to_string(rank_) +
                 " closed the communicator before its work on the device was done");
    group_.wait_until_known();
    handle_->abort();
  }
  barrier_word_.reset();
  // A peer that is gone by now must not hold us.
  handle_->finish(deadline, [this] { return group_.aborted(); });
  if (!handle_->wait_for_end()) tell_left_behind();
}

void NcclCommunicator::tell_left_behind() const {
  teller_.tell(
      "rank " + std::to_string(rank_) + ": NCCL's communicator did not end within " +
      std::to_string(end_time().count()) +
      " ms and is left behind with its memory: a CUDA graph that has recorded its calls was "
      "not destroyed before it, or the device does not answer; destroy graphs first, "
      "executable ones and those they were made of");
}

void NcclCommunicator::start_nccl(const NcclPeers& peers, int interrupt_fd) {
  const WaitForOthers told_of;
  const ncclResult_t begun = handle_->start(peers.id, rank_, world_size_);
  const std::string problem = settle(begun, peers.deadline - Clock::now(), interrupt_fd);
  if (!problem.empty()) {
    group_.abort("rank " + std::to_string(rank_) + ": ncclCommInitRankConfig " + problem);
  }
  if (!group_.aborted()) return;
  throw CommunicatorError("NCCL could not be started on rank " + std::to_string(rank_) + ": " +
                          group_.reason());
}

std::string NcclCommunicator::settle(ncclResult_t result, Clock::duration limit, int interrupt_fd) {
  AwakeTime awake;
  const auto begun = awake.at(Clock::now());
  while (result == ncclInProgress) {
    if (group_.aborted()) return "";
    const auto now = awake.at(Clock::now());
    if (now >= begun + limit) return "did not end in time";
    if (is_readable(interrupt_fd)) return "was interrupted";
    if (now - begun < spin_time) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(poll_pause);
    }
    const auto state = handle_->state();
    if (!state) return "";
    result = *state;
  }
  if (result == ncclSuccess || group_.aborted()) return "";
  return std::string("failed: ") + ncclGetErrorString(result) + ": " + ncclGetLastError(nullptr);
}

template <typename Function>
void NcclCommunicator::queue(const Call& call, Stream stream, Function function) {
  const CallGuard::Inside inside(guard_);
  require_cuda(cudaSetDevice(handle_->device()), call, "cudaSetDevice");
  const auto on = static_cast<cudaStream_t>(stream);
  const std::string problem =
      settle(handle_->call([&](ncclComm_t comm) { return function(comm, on); }), timeout_);
  if (!problem.empty() || group_.aborted()) handle_->leave_call();
  if (!problem.empty()) fail(call, problem);
  guard_.throw_if_aborted(call);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  require_cuda(cudaStreamIsCapturing(on, &capture), call, "cudaStreamIsCapturing");
  if (capture != cudaStreamCaptureStatusNone) {
    recorded_ = call;  // It has not started: replayed() tells when.
    return;
  }
  watch(call, stream);
  last_ = call;
}

void NcclCommunicator::replayed(Stream stream) {
  const CallGuard::Inside inside(guard_);
  guard_.throw_if_aborted(recorded_);
  // The watchdog's event is of the current device, and must be of the stream's.
  require_cuda(cudaSetDevice(handle_->device()), recorded_, "cudaSetDevice");
  watch(recorded_, stream);
  stopwatch_.replayed(static_cast<cudaStream_t>(stream));
  last_ = recorded_;
}

// A rank alone waits for nobody, and need not pay for events.
void NcclCommunicator::wait_begins(Stream stream) {
  if (world_size_ == 1 || cudaSetDevice(handle_->device()) != cudaSuccess) return;
  stopwatch_.begin(static_cast<cudaStream_t>(stream));
}

void NcclCommunicator::wait_ends(Stream stream) {
  if (world_size_ > 1) stopwatch_.end(static_cast<cudaStream_t>(stream));
}

void NcclCommunicator::watch(const Call& call, Stream stream) {
  try {
    watchdog_.watch(call, static_cast<cudaStream_t>(stream), timeout_);
  } catch (const CommunicatorError& error) {
    fail(call, std::string("failed: ") + error.what());
  }
}

void NcclCommunicator::require_cuda(cudaError_t status, const Call& call,
                                    const std::string& function) {
  if (status == cudaSuccess) return;
  fail(call, "failed: " + function + ": " + cudaGetErrorString(status));
}

void NcclCommunicator::fail(const Call& call, const std::string& problem) {
  guard_.fail(call, "rank " + std::to_string(rank_) + ": " + to_string(call) + " " + problem);
}

void NcclCommunicator::all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                                  Stream stream) {
  const Call call = guard_.begin(CallKind::AllReduce, count, type, {data}, op);
  queue(call, stream, [&](ncclComm_t comm, cudaStream_t on) {
    return ncclAllReduce(data, data, count, to_nccl(type), to_nccl(op), comm, on);
  });
}

void NcclCommunicator::all_gather(const void* send, void* recv, std::size_t count, DataType type,
                                  Stream stream) {
  const Call call = guard_.begin(CallKind::AllGather, count, type, {send, recv});
  queue(call, stream, [&](ncclComm_t comm, cudaStream_t on) {
    return ncclAllGather(send, recv, count, to_nccl(type), comm, on);
  });
}

void NcclCommunicator::reduce_scatter(const void* send, void* recv, std::size_t count,
                                      DataType type, ReduceOp op, Stream stream) {
  const Call call = guard_.begin(CallKind::ReduceScatter, count, type, {send, recv}, op);
  queue(call, stream, [&](ncclComm_t comm, cudaStream_t on) {
    return ncclReduceScatter(send, recv, count, to_nccl(type), to_nccl(op), comm, on);
  });
}

void NcclCommunicator::broadcast(void* data, std::size_t count, DataType type, int root,
                                 Stream stream) {
  const Call call = guard_.begin(CallKind::Broadcast, count, type, {data}, ReduceOp::Sum, root);
  queue(call, stream, [&](ncclComm_t comm, cudaStream_t on) {
    return ncclBroadcast(data, data, count, to_nccl(type), root, comm, on);
  });
}

void NcclCommunicator::send(const void* data, std::size_t count, DataType type, int peer,
                            Stream stream) {
  const Call call = guard_.begin_message("send", data, count, type, peer, /*sends=*/true);
  queue(call, stream, [&](ncclComm_t comm, cudaStream_t on) {
    return ncclSend(data, count, to_nccl(type), peer, comm, on);
  });
}

void NcclCommunicator::recv(void* data, std::size_t count, DataType type, int peer, Stream stream) {
  const Call call = guard_.begin_message("recv", data, count, type, peer, /*sends=*/false);
  queue(call, stream, [&](ncclComm_t comm, cudaStream_t on) {
    return ncclRecv(data, count, to_nccl(type), peer, comm, on);
  });
}

// NCCL has none: the smallest of its collectives, and a wait until the stream got there.
void NcclCommunicator::barrier(Stream stream) {
  const Call call = guard_.begin(CallKind::Barrier, 0, DataType::UInt8, {});
  queue(call, stream, [&](ncclComm_t comm, cudaStream_t on) {
    void* const word = barrier_word_.get();
    return ncclAllReduce(word, word, 1, ncclInt32, ncclMax, comm, on);
  });
  wait_for(call, stream);
}

void NcclCommunicator::all_gather_on_host(const void* send, void* recv, std::size_t bytes,
                                          Stream stream) {
  try {
    gather_by_device(send, recv, bytes, stream);
  } catch (const CommunicatorError& error) {
    // Whatever failed: the peers wait for this rank, and may have no call of it to be late in.
    group_.abort("rank " + std::to_string(rank_) + ": all_gather_on_host of " +
                 std::to_string(bytes) + " bytes failed: " + error.what());
    // Not as it was thrown: after an OutOfMemory the communicator could be used.
    throw CommunicatorError(error.what());
  }
}

// NCCL moves no other memory than the device's.
void NcclCommunicator::gather_by_device(const void* send, void* recv, std::size_t bytes,
                                        Stream stream) {
  const std::size_t all = bytes * static_cast<std::size_t>(world_size_);
  const auto memory = allocate(all + bytes);
  char* const own = static_cast<char*>(memory.get()) + all;
  const auto on = static_cast<cudaStream_t>(stream);
  check_cuda(cudaMemcpyAsync(own, send, bytes, cudaMemcpyHostToDevice, on), "cudaMemcpyAsync");
  all_gather(own, memory.get(), bytes, DataType::UInt8, stream);
  wait(stream);
  check_cuda(cudaMemcpyAsync(recv, memory.get(), all, cudaMemcpyDeviceToHost, on),
             "cudaMemcpyAsync");
  wait(stream);
}

void NcclCommunicator::wait_for(const Call& call, Stream stream) {
  const CallGuard::Inside inside(guard_);
  // Or a launcher would not know this rank from one that hangs.
  std::optional<WaitForOthers> told_of;
  if (world_size_ > 1) told_of.emplace();
  // The null stream is the current device's, and a thread that has made no call yet has GPU 0.
  require_cuda(cudaSetDevice(handle_->device()), call, "cudaSetDevice");
  AwakeTime awake;
  const auto deadline = awake.at(Clock::now()) + timeout_ + watchdog_time;
  for (;;) {
    const cudaError_t status = cudaStreamQuery(static_cast<cudaStream_t>(stream));
    // Asked after the query: an aborted kernel ends early, this rank's as well as a peer's, whose
    // word of it may lie unread if this process was stopped meanwhile.
    if (status == cudaSuccess) group_.catch_up();
    guard_.throw_if_aborted(call);
    if (status == cudaSuccess) return;
    if (status != cudaErrorNotReady) {
      fail(call, std::string("failed: ") + cudaGetErrorString(status));
    }
    if (awake.at(Clock::now()) >= deadline)
      fail(call, "did not end in time: the stream is not that far");
    std::this_thread::sleep_for(poll_pause);
  }
}

}  // namespace ddprun::worker

extern "C" __attribute__((visibility("default"))) ddprun::worker::Communicator*
ddprun_make_nccl_communicator_3(const ddprun::worker::WorkerEnv* env,
                                const ddprun::worker::CommunicatorOptions* options, char* error,
                                std::size_t error_bytes) {
  return ddprun::worker::make_for_program<ddprun::worker::NcclCommunicator>(*env, *options, error,
                                                                            error_bytes);
}
