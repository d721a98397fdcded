// Starting and failing of calls, barrier and allocate.
#include "worker/cpu/cpu_communicator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace ddprun::worker {
namespace {

// A wait spins this often before it sleeps: about 20 us, the price of a sleep and a wake-up. Not
// more, because the core may be needed by this process's own compute threads.
constexpr int spins_max = 1000;

}  // namespace

CpuCommunicator::CpuCommunicator(Parts parts, const CpuCommunicatorOptions& options)
    : rank_(parts.rank),
      world_size_(parts.world_size),
      description_(std::move(parts.description)),
      chunk_bytes_(options.chunk_bytes),
      timeout_(options.common.collective_timeout),
      slow_waits_(options.common),
      spins_(parts.spin ? spins_max : 0),
      host_(std::move(parts.host)),
      streams_(std::move(parts.streams)),
      sent_(static_cast<std::size_t>(world_size_)),
      received_(static_cast<std::size_t>(world_size_)),
      watch_(std::move(parts.watched), [this] {
        if (host_) host_->ring();
        streams_->interrupt();
      }) {
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_) continue;
    (host_ && host_->contains(peer) ? local_ : remote_).push_back(peer);
  }
  if (!remote_.empty()) {
    remote_slices_.resize(2 * static_cast<std::size_t>(world_size_) * slice_bytes_max());
  }
}

std::size_t CpuCommunicator::slice_bytes_max() const {
  return chunk_bytes_ / static_cast<std::size_t>(world_size_) + 128;  // Rounded up to lines.
}

unsigned char* CpuCommunicator::remote_slice(int peer, std::uint64_t step) {
  const auto world = static_cast<std::size_t>(world_size_);
  return remote_slices_.data() +
         (step % 2 * world + static_cast<std::size_t>(peer)) * slice_bytes_max();
}

void CpuCommunicator::throw_aborted(const Call& call) {
  throw CommunicatorError(to_string(call) + " failed on rank " + std::to_string(rank_) + ": " +
                          watch_.reason());
}

void CpuCommunicator::fail(const Call& call, const std::string& reason) {
  watch_.abort(reason);
  throw_aborted(call);
}

void CpuCommunicator::require(bool condition, const Call& call, const std::string& problem) {
  // The others must not wait for a call that this rank does not make.
  if (!condition) fail(call, "rank " + std::to_string(rank_) + ": " + problem);
}

CpuCommunicator::Running CpuCommunicator::start(CallKind kind, std::size_t count, DataType type,
                                                std::initializer_list<const void*> pointers,
                                                ReduceOp op, int root) {
  Call call;
  call.kind = kind;
  call.count = count;
  call.type = type;
  call.op = op;
  call.root = root;
  call.sequence = ++calls_;
  if (watch_.aborted()) throw_aborted(call);
  require(count <= SIZE_MAX / 16 / static_cast<std::size_t>(world_size_), call,
          "this many elements do not fit any memory");
  require(is_supported(type, op), call, "the average of integers is not an integer: use sum");
  for (const void* pointer : pointers) {
    require(pointer != nullptr || count == 0, call, "the data is a null pointer");
  }
  require(root >= 0 && root < world_size_, call, "there is no such root");
  return {call, steps_, Clock::now() + timeout_};
}

void CpuCommunicator::finish(const Running& running, std::uint64_t steps) {
  steps_ = running.first_step + steps;
}

void CpuCommunicator::check_calls(const Running& running) {
  for (int peer : local_) {
    const Call theirs = host_->announced(peer, running.call.sequence);
    if (theirs != running.call) {
      fail(running.call, describe_mismatch(rank_, running.call, peer, theirs));
    }
  }
}

void CpuCommunicator::barrier(Stream) {
  const Running running = start(CallKind::Barrier, 0, DataType::UInt8, {});
  for (int peer : remote_) {
    streams_->post_send(peer, running.call, 0, nullptr, 0);
    streams_->post_receive(peer, running.call, 0, nullptr, 0);
  }
  if (host_) {
    host_->announce(running.call, {});
    host_->offer(running.first_step + 1);
    wait_offered(running, running.first_step + 1);
    check_calls(running);
  }
  wait_streams_idle(running);
  finish(running, 1);
}

std::shared_ptr<void> CpuCommunicator::allocate(std::size_t bytes) {
  bytes = std::max<std::size_t>(bytes, 64);
  const Running running = start(CallKind::Allocate, bytes, DataType::UInt8, {});
  for (int peer : remote_) {
    streams_->post_send(peer, running.call, 0, nullptr, 0);
    streams_->post_receive(peer, running.call, 0, nullptr, 0);
  }
  std::uint32_t number = 0;
  if (host_) {
    number = host_->begin_allocation(bytes);
    host_->announce(running.call, {});
    host_->offer(running.first_step + 1);
    wait_offered(running, running.first_step + 1);
    check_calls(running);
    std::uint64_t mapped = 0;
    for (int peer : local_) {
      if (host_->map_allocation(peer, number)) mapped |= std::uint64_t{1} << peer;
    }
    host_->acknowledge(mapped);
    host_->combine(running.first_step + 1);
    wait_combined(running, running.first_step + 1);
  }
  wait_streams_idle(running);
  finish(running, 1);
  if (number != 0 && host_->allocation_data(rank_, number) != nullptr) {
    const auto acknowledged = [&](int peer) { return host_->acknowledged_by(peer); };
    if (std::all_of(local_.begin(), local_.end(), acknowledged)) host_->finish_allocation(number);
    return {host_->allocation_data(rank_, number),
            [host = host_, number](void*) { host->release_allocation(number); }};
  }
  const std::size_t rounded = (bytes + 63) / 64 * 64;
  void* memory = std::aligned_alloc(64, rounded);
  if (memory == nullptr)
    fail(running.call, "rank " + std::to_string(rank_) + " has no memory left");
  std::memset(memory, 0, rounded);
  return {memory, [](void* data) { std::free(data); }};
}

}  // namespace ddprun::worker
