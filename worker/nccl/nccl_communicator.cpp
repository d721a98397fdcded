// The collectives over NCCL; part of the CUDA module.
//
//   caller ----- ncclAllReduce ... -----> stream        returns when queued
//   watchdog --- oldest event not done in time, async error, a peer's death --> ncclCommAbort
//
// The communicator is non-blocking: no call of NCCL can hang its thread, every wait has a deadline.
// A kernel that waits for a dead peer ends only when the communicator is aborted, so the watchdog
// thread does that; the flag that says so is set before, because an aborted kernel looks like one
// that succeeded.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "worker/communicator_modules.h"
#include "worker/meeting.h"
#include "worker/nccl/device_queue.h"
#include "worker/nccl/nccl_handle.h"
#include "worker/peers/call_guard.h"
#include "worker/peers/exchange.h"
#include "worker/peers/mesh.h"
#include "worker/peers/slow_wait.h"
#include "worker/peers/watch.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto poll_pause = std::chrono::microseconds{50};
constexpr auto watchdog_pause = std::chrono::milliseconds{20};
constexpr auto answer_time = std::chrono::milliseconds{500};  // To say that a process is alive.
constexpr auto finish_time_max = std::chrono::seconds{10};

ncclDataType_t to_nccl(DataType type) {
  switch (type) {
    case DataType::Float32:
      return ncclFloat32;
    case DataType::Float64:
      return ncclFloat64;
    case DataType::Float16:
      return ncclFloat16;
    case DataType::BFloat16:
      return ncclBfloat16;
    case DataType::Int32:
      return ncclInt32;
    case DataType::Int64:
      return ncclInt64;
    case DataType::UInt8:
      return ncclUint8;
  }
  throw CommunicatorError("unknown data type");
}

ncclRedOp_t to_nccl(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return ncclSum;
    case ReduceOp::Average:
      return ncclAvg;
    case ReduceOp::Max:
      return ncclMax;
    case ReduceOp::Min:
      return ncclMin;
  }
  throw CommunicatorError("unknown operation");
}

std::string to_hex(const ncclUniqueId& id) {
  std::string text;
  for (const char c : id.internal) {
    text += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
    text += "0123456789abcdef"[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

ncclUniqueId id_from_hex(const std::string& text) {
  ncclUniqueId id;
  if (text.size() != 2 * sizeof(id.internal)) {
    throw CommunicatorError("rank 0 published no NCCL id: do all ranks use CUDA?");
  }
  for (std::size_t i = 0; i < sizeof(id.internal); ++i) {
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const WorkerEnv& env, const CommunicatorOptions& options);
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::string description() const override { return description_; }
  bool is_cuda() const override { return true; }

  void all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                  Stream stream) override {
    require_average_of_floats(type, op);
    queue("all_reduce", stream, [&](ncclComm_t comm, cudaStream_t on) {
      return ncclAllReduce(data, data, count, to_nccl(type), to_nccl(op), comm, on);
    });
  }
  void all_gather(const void* send, void* recv, std::size_t count, DataType type,
                  Stream stream) override {
    queue("all_gather", stream, [&](ncclComm_t comm, cudaStream_t on) {
      return ncclAllGather(send, recv, count, to_nccl(type), comm, on);
    });
  }
  void reduce_scatter(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op,
                      Stream stream) override {
    require_average_of_floats(type, op);
    queue("reduce_scatter", stream, [&](ncclComm_t comm, cudaStream_t on) {
      return ncclReduceScatter(send, recv, count, to_nccl(type), to_nccl(op), comm, on);
    });
  }
  void broadcast(void* data, std::size_t count, DataType type, int root, Stream stream) override {
    queue("broadcast", stream, [&](ncclComm_t comm, cudaStream_t on) {
      return ncclBroadcast(data, data, count, to_nccl(type), root, comm, on);
    });
  }
  void send(const void* data, std::size_t count, DataType type, int peer, Stream stream) override {
    queue("send", stream, [&](ncclComm_t comm, cudaStream_t on) {
      return ncclSend(data, count, to_nccl(type), peer, comm, on);
    });
  }
  void recv(void* data, std::size_t count, DataType type, int peer, Stream stream) override {
    queue("recv", stream, [&](ncclComm_t comm, cudaStream_t on) {
      return ncclRecv(data, count, to_nccl(type), peer, comm, on);
    });
  }
  void barrier(Stream stream) override;
  std::shared_ptr<void> allocate(std::size_t bytes) override { return handle_->allocate(bytes); }
  void abort(const std::string& reason) noexcept override { watch_->abort(reason); }

 private:
  void connect(const WorkerEnv& env, const CommunicatorOptions& options);
  void start_nccl(const ncclUniqueId& id, Clock::time_point deadline);
  // Waits while NCCL works in the background; ends with success or an exception.
  void settle(ncclResult_t result, const char* what, Clock::time_point deadline);
  template <typename Call>
  void queue(const char* what, Stream stream, Call call);
  void remember(const char* what, cudaStream_t stream);
  void require_average_of_floats(DataType type, ReduceOp op);
  [[noreturn]] void fail(const std::string& reason);
  void throw_if_aborted(const char* what) const;
  void watch_queue();
  DeviceQueue::Finding check_device();  // Aborts where work is late or failed.
  void tell_slow(const DeviceQueue::Finding& slow);

  int rank_;
  int world_size_;
  std::string description_;
  std::chrono::milliseconds timeout_;
  SlowWaitTeller slow_waits_;
  std::shared_ptr<NcclHandle> handle_;
  std::shared_ptr<void> barrier_word_;

  std::mutex queue_mutex_;  // Guards queue_ and stop_.
  std::condition_variable queue_changed_;
  DeviceQueue queue_{slow_waits_};
  bool stop_ = false;

  std::unique_ptr<PeerWatch> watch_;
  std::thread watchdog_;
};

NcclCommunicator::NcclCommunicator(const WorkerEnv& env, const CommunicatorOptions& options)
    : rank_(env.rank),
      world_size_(env.world_size),
      timeout_(options.collective_timeout),
      slow_waits_(options) {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    throw CommunicatorError(std::string("no CUDA device can be used on this host: ") +
                            cudaGetErrorString(status == cudaSuccess ? cudaErrorNoDevice : status) +
                            " (is a driver installed, is the device visible in this container?)");
  }
  if (options.cuda_device < 0 || options.cuda_device >= devices) {
    throw CommunicatorError("there is no CUDA device " + std::to_string(options.cuda_device) +
                            ": this host has " + std::to_string(devices));
  }
  handle_ = std::make_shared<NcclHandle>(options.cuda_device);
  check_cuda(cudaSetDevice(handle_->device()), "cudaSetDevice");
  int version = 0;
  ncclGetVersion(&version);
  description_ = "nccl " + std::to_string(version) + ": " + std::to_string(world_size_) +
                 " rank(s), device " + std::to_string(handle_->device());
  connect(env, options);
  try {
    barrier_word_ = allocate(sizeof(int));
  } catch (...) {
    handle_->abort();
    throw;
  }
  watchdog_ = std::thread([this] { watch_queue(); });
}

void NcclCommunicator::connect(const WorkerEnv& env, const CommunicatorOptions& options) {
  const auto deadline = Clock::now() + options.connect_timeout;
  const auto wake = [this] { queue_changed_.notify_all(); };
  ncclUniqueId id{};
  if (rank_ == 0 && ncclGetUniqueId(&id) != ncclSuccess) {
    throw CommunicatorError(std::string("ncclGetUniqueId: ") + ncclGetLastError(nullptr));
  }
  if (world_size_ == 1) {
    watch_ = std::make_unique<PeerWatch>(std::vector<PeerWatch::Peer>(1), wake);
    return start_nccl(id, deadline);
  }
  const auto exchange = make_store_exchange(meet_workers(env, options), options);
  const auto epoch = static_cast<std::uint32_t>(env.restart_count);
  PeerAddress mine;
  mine.ip = exchange->local_address();
  Mesh mesh(rank_, epoch, mine.ip);
  mine.port = mesh.port();
  mine.secret = mesh.secret();
  mine.segment.pid = ::getpid();
  const auto texts =
      exchange->all_gather(to_text(mine) + " " + (rank_ == 0 ? to_hex(id) : "-"), deadline);
  std::vector<PeerAddress> addresses;
  for (const std::string& text : texts) addresses.push_back(parse_peer_address(text));
  id = id_from_hex(texts[0].substr(texts[0].rfind(' ') + 1));
  std::vector<PeerSockets> sockets = mesh.connect(addresses, deadline);
  std::vector<PeerWatch::Peer> peers;
  for (std::size_t peer = 0; peer < sockets.size(); ++peer) {
    peers.push_back(
        {std::move(sockets[peer].watch), "rank " + std::to_string(peer) + " (pid " +
                                             std::to_string(addresses[peer].segment.pid) + " on " +
                                             addresses[peer].ip + ")"});
  }
  watch_ = std::make_unique<PeerWatch>(std::move(peers), wake);
  start_nccl(id, deadline);
}

void NcclCommunicator::start_nccl(const ncclUniqueId& id, Clock::time_point deadline) {
  try {
    settle(handle_->start(id, rank_, world_size_), "ncclCommInitRankConfig", deadline);
  } catch (...) {
    handle_->abort();
    throw;
  }
}

void NcclCommunicator::settle(ncclResult_t result, const char* what, Clock::time_point deadline) {
  while (result == ncclInProgress) {
    throw_if_aborted(what);
    if (Clock::now() >= deadline) fail(std::string(what) + " did not end in time");
    std::this_thread::sleep_for(poll_pause);
    const auto state = handle_->state();
    if (!state) break;
    result = *state;
  }
  throw_if_aborted(what);
  if (result != ncclSuccess) {
    fail(std::string(what) + ": " + ncclGetErrorString(result) + ": " + ncclGetLastError(nullptr));
  }
}

template <typename Call>
void NcclCommunicator::queue(const char* what, Stream stream, Call call) {
  throw_if_aborted(what);
  check_cuda(cudaSetDevice(handle_->device()), "cudaSetDevice");
  const auto on = static_cast<cudaStream_t>(stream);
  const ncclResult_t result = handle_->call([&](ncclComm_t comm) { return call(comm, on); });
  settle(result, what, Clock::now() + timeout_);
  remember(what, on);
}

// Work that is recorded into a graph has not started; its replay is the caller's to watch.
void NcclCommunicator::remember(const char* what, cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing");
  if (capture != cudaStreamCaptureStatusNone) return;
  const std::lock_guard lock(queue_mutex_);
  queue_.add(what, stream, Clock::now() + timeout_);
  queue_changed_.notify_one();
}

void NcclCommunicator::require_average_of_floats(DataType type, ReduceOp op) {
  if (!is_supported(type, op)) {
    fail("rank " + std::to_string(rank_) + ": the average of integers is not an integer: use sum");
  }
}

void NcclCommunicator::fail(const std::string& reason) {
  watch_->abort("rank " + std::to_string(rank_) + ": " + reason);
  throw_if_aborted("nccl");
  throw CommunicatorError(reason);
}

void NcclCommunicator::throw_if_aborted(const char* what) const {
  if (!watch_->aborted()) return;
  throw CommunicatorError(std::string(what) + " failed on rank " + std::to_string(rank_) + ": " +
                          watch_->reason());
}

void NcclCommunicator::barrier(Stream stream) {
  all_reduce(barrier_word_.get(), 1, DataType::Int32, ReduceOp::Max, stream);
  const auto deadline = Clock::now() + timeout_;
  for (;;) {
    const cudaError_t status = cudaStreamQuery(static_cast<cudaStream_t>(stream));
    throw_if_aborted("barrier");  // Asked after the query: an aborted kernel ends early.
    if (status == cudaSuccess) return;
    if (status != cudaErrorNotReady) fail(std::string("barrier: ") + cudaGetErrorString(status));
    if (Clock::now() >= deadline) fail("barrier: the stream did not get there in time");
    std::this_thread::sleep_for(poll_pause);
  }
}

void NcclCommunicator::watch_queue() {
  cudaSetDevice(handle_->device());
  std::unique_lock lock(queue_mutex_);
  while (!stop_) {
    if (watch_->aborted()) {
      lock.unlock();
      handle_->abort();
      return;
    }
    const DeviceQueue::Finding finding = check_device();
    if (finding.kind == DeviceQueue::Finding::Kind::Slow) {
      lock.unlock();  // Asking the others takes a moment.
      tell_slow(finding);
      lock.lock();
      continue;
    }
    queue_changed_.wait_for(lock, queue_.empty() ? 10 * watchdog_pause : watchdog_pause);
  }
}

// The device does not say whom it waits for; a process that does not even answer is most likely the
// one.
void NcclCommunicator::tell_slow(const DeviceQueue::Finding& slow) {
  const auto answers = watch_->ask(Clock::now() + answer_time);
  if (watch_->aborted()) return;
  const auto names = watch_->names();
  std::string silent;
  for (std::size_t peer = 0; peer < answers.size(); ++peer) {
    if (static_cast<int>(peer) == rank_ || answers[peer]) continue;
    silent += (silent.empty() ? "" : ", ") + names[peer];
  }
  slow_waits_.tell(rank_, slow.since, std::string(slow.what) + " on the device",
                   silent.empty() ? "a peer is busy, blocked or called something else"
                                  : silent + " did not answer (stopped, or cut off)");
}

DeviceQueue::Finding NcclCommunicator::check_device() {
  const std::string self = "rank " + std::to_string(rank_) + ": ";
  DeviceQueue::Finding finding = queue_.check(Clock::now());
  const std::string work = self + finding.what + " on the device ";
  if (finding.kind == DeviceQueue::Finding::Kind::Late) {
    watch_->abort(work + slow_waits_.timed_out() +
                  ": a peer is stopped, blocked or called something else");
  } else if (finding.kind == DeviceQueue::Finding::Kind::Failed) {
    watch_->abort(work + "failed: " + finding.error);
  }
  const auto state = handle_->state();
  if (!state || *state == ncclSuccess || *state == ncclInProgress) return finding;
  watch_->abort(self + ncclGetErrorString(*state) + ": " + ncclGetLastError(nullptr));
  return {};
}

NcclCommunicator::~NcclCommunicator() {
  {
    const std::lock_guard lock(queue_mutex_);
    stop_ = true;
  }
  queue_changed_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
  cudaSetDevice(handle_->device());
  // Before memory is given back: that waits for kernels, and nobody else would end them now.
  if (watch_->aborted()) handle_->abort();
  barrier_word_.reset();
  // A peer that is gone by now must not hold us.
  handle_->finish(Clock::now() + finish_time_max, [this] { return watch_->aborted(); });
}

}  // namespace
}  // namespace ddprun::worker

extern "C" __attribute__((visibility("default"))) ddprun::worker::Communicator*
ddprun_make_nccl_communicator(const ddprun::worker::WorkerEnv* env,
                              const ddprun::worker::CommunicatorOptions* options, char* error,
                              std::size_t error_bytes) {
  return ddprun::worker::make_for_program<ddprun::worker::NcclCommunicator>(*env, *options, error,
                                                                            error_bytes);
}
