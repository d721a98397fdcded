// Meeting, and kernels that wait for each other through the board.
#include "tests/fake_cuda/nccl_comm.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tests/fake_cuda/switches.h"

using ddprun::fake_cuda::Board;
using ddprun::fake_cuda::Called;
using ddprun::fake_cuda::channel_bytes;
using ddprun::fake_cuda::slot_bytes;
using std::chrono::microseconds;

namespace {

std::mutex last_error_mutex;
std::string last_error_text;

}  // namespace

bool ncclComm::wait(const std::function<bool()>& condition) const {
  for (microseconds pause{10}; !condition(); pause = std::min(pause * 2, microseconds{500})) {
    if (aborted) return false;
    std::this_thread::sleep_for(pause);
  }
  return !aborted;
}

bool ncclComm::exchange(const Called& called, const void* send, std::size_t count,
                        std::size_t bytes, const Take& take) {
  Board::Rank* const ranks = board->ranks;
  const auto gave_up = [](const Board::Rank& other) { return other.gave_up.load(); };
  const auto all = [&](const auto& condition) {
    return wait([&] {
      return std::all_of(ranks, ranks + world, condition) ||
             std::any_of(ranks, ranks + world, gave_up);
    });
  };
  const std::size_t at_once = slot_bytes / bytes;
  std::vector<const void*> slots;
  for (int peer = 0; peer < world; ++peer) slots.push_back(board->slots[peer]);
  std::size_t first = 0;
  do {
    const std::size_t elements = std::min(at_once, count - first);
    const std::uint64_t chunk = ++chunks;
    if (!all([&](const auto& other) { return other.read >= chunk - 1; })) return false;
    ranks[rank].called = called;
    if (send != nullptr) {
      std::memcpy(board->slots[rank], static_cast<const char*>(send) + first * bytes,
                  elements * bytes);
    }
    ranks[rank].written = chunk;
    if (!all([&](const auto& other) { return other.written >= chunk; })) return false;
    if (!all([&](const auto& other) { return other.called == called; })) return false;
    if (elements > 0) take(first, elements, slots.data());  // Of nothing the pointers may be null.
    ranks[rank].read = chunk;
    first += elements;
  } while (first < count);
  return true;
}

bool ncclComm::send(const Called& called, const void* data, std::size_t bytes, int peer) {
  auto& channel = board->channels[rank][peer];
  std::size_t first = 0;
  do {
    const std::size_t part = std::min(channel_bytes, bytes - first);
    if (!wait([&] { return channel.received == channel.sent; })) return false;
    channel.called = called;
    std::memcpy(channel.data, static_cast<const char*>(data) + first, part);
    ++channel.sent;
    first += part;
  } while (first < bytes);
  return true;
}

bool ncclComm::receive(const Called& called, void* data, std::size_t bytes, int peer) {
  auto& channel = board->channels[peer][rank];
  std::size_t first = 0;
  do {
    const std::size_t part = std::min(channel_bytes, bytes - first);
    const auto is_there = [&] { return channel.sent > channel.received; };
    if (!wait([&] { return is_there() && channel.called == called; })) return false;
    std::memcpy(static_cast<char*>(data) + first, channel.data, part);
    ++channel.received;
    first += part;
  } while (first < bytes);
  return true;
}

namespace ddprun::fake_cuda {

void set_last_error(const std::string& text) {
  const std::lock_guard lock(last_error_mutex);
  last_error_text = text;
}

const char* last_error() {
  thread_local std::string copy;
  const std::lock_guard lock(last_error_mutex);
  copy = last_error_text;
  return copy.c_str();
}

ncclResult_t join(ncclComm& comm) {
  comm.board = map_board(comm.id);
  if (comm.board == nullptr) {
    set_last_error("socketPollConnect: connect returned Connection refused, exceeded error retry");
    return ncclSystemError;
  }
  if (switched_for("FAKE_NCCL_HANG_INIT", comm.rank)) {
    comm.wait([] { return false; });
    return ncclInternalError;
  }
  Board::Rank& self = comm.board->ranks[comm.rank];
  const auto host = switched("NCCL_HOSTID");
  self.host = host ? std::hash<std::string>{}(*host) : 0;
  self.device = comm.device;
  self.here = 1;
  for (int peer = 0; peer < comm.world; ++peer) {
    const Board::Rank& other = comm.board->ranks[peer];
    if (!comm.wait([&] { return other.here == 1; })) return ncclInternalError;
  }
  if (comm.rank == 0) close_board(comm.id);
  for (int peer = 0; peer < comm.world; ++peer) {
    const Board::Rank& other = comm.board->ranks[peer];
    if (peer == comm.rank || other.host != self.host || other.device != self.device) continue;
    char text[128];
    std::snprintf(text, sizeof(text),
                  "Duplicate GPU detected : rank %d and rank %d both on CUDA "
                  "device %x",
                  comm.rank, peer, 0x1000 * (1 + comm.device));
    set_last_error(text);
    return ncclInvalidUsage;
  }
  return ncclSuccess;
}

namespace {

// Of one kernel; of a captured one as long as a graph has it.
struct Launched {
  ncclComm* comm;
  Kernel kernel;
  bool in_graph;
};

void run(void* data) {
  auto* const launched = static_cast<Launched*>(data);
  ncclComm& comm = *launched->comm;
  {
    const std::lock_guard lock(comm.running);
    const long call = comm.kernels++;
    const long slow = number_of(switched_for("FAKE_NCCL_SLOW", comm.rank), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds{slow});
    const auto lost = switched_for("FAKE_NCCL_LOST", comm.rank);
    if (lost && call >= number_of(lost, 0)) {
      set_last_error("NET/Socket : peer 127.0.0.1<1> is out of reach");
      comm.state = ncclRemoteError;
      comm.wait([] { return false; });
    } else if (!launched->kernel(comm)) {
      comm.board->ranks[comm.rank].gave_up = true;
    }
  }
  if (launched->in_graph) return;
  --comm.queued;
  delete launched;
}

void forget(void* data) {
  auto* const launched = static_cast<Launched*>(data);
  --launched->comm->graphs;
  delete launched;
}

}  // namespace

ncclResult_t launch(ncclComm& comm, Kernel kernel, cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  cudaStreamGetCaptureInfo(stream, &capture, nullptr, &graph, nullptr, nullptr, nullptr);
  const bool in_graph = capture == cudaStreamCaptureStatusActive;
  auto* const launched = new Launched{&comm, std::move(kernel), in_graph};
  if (in_graph) {
    ++comm.graphs;
    cudaUserObject_t object = nullptr;
    cudaUserObjectCreate(&object, launched, &forget, 1, cudaUserObjectNoDestructorSync);
    cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  } else {
    ++comm.queued;
  }
  return cudaLaunchHostFunc(stream, &run, launched) == cudaSuccess ? ncclSuccess
                                                                   : ncclUnhandledCudaError;
}

}  // namespace ddprun::fake_cuda
