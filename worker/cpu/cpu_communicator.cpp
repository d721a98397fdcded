// The collectives that are one loop over chunks. Header of host_group.h: why two buffers per rank
// are enough.
#include "worker/cpu/cpu_communicator.h"

#include <algorithm>

#include "worker/cpu/cpu_all_reduce.h"
#include "worker/cpu/cpu_connect.h"
#include "worker/cpu/layout.h"
#include "worker/cpu/reduce.h"
#include "worker/host_memory.h"

namespace ddprun::worker {

std::unique_ptr<Communicator> connect_cpu_communicator(int rank, int world_size, Epoch epoch,
                                                       AddressExchange& exchange,
                                                       const CpuCommunicatorOptions& options) {
  return std::make_unique<CpuCommunicator>(
      connect_cpu_peers(rank, world_size, epoch, exchange, options), options);
}

std::unique_ptr<Communicator> make_cpu_communicator(const WorkerEnv& env,
                                                    const CommunicatorOptions& common) {
  CpuCommunicatorOptions options;
  options.common = bounded(common);
  return std::make_unique<CpuCommunicator>(meet_cpu_peers(env, options), options);
}

CpuCommunicator::CpuCommunicator(CpuPeers::Parts parts, const CpuCommunicatorOptions& options)
    : peers_(std::move(parts), options),
      rank_(peers_.rank()),
      world_size_(peers_.world_size()),
      chunk_bytes_(options.chunk_bytes),
      slices_(chunk_bytes_, world_size_, !peers_.remote().empty()),
      messages_(peers_) {}

void CpuCommunicator::all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                                 Stream) {
  const CpuPeers::Running running = peers_.start(CallKind::AllReduce, count, type, {data}, op);
  if (world_size_ == 1) return;
  CpuAllReduce(peers_, slices_, chunk_bytes_, running, data).run();
}

void CpuCommunicator::reduce_scatter(const void* send, void* recv, std::size_t count, DataType type,
                                     ReduceOp op, Stream) {
  const CpuPeers::Running running =
      peers_.start(CallKind::ReduceScatter, count, type, {send, recv}, op);
  const auto& host = peers_.host();
  const auto* from = static_cast<const unsigned char*>(send);
  auto* to = static_cast<unsigned char*>(recv);
  const std::size_t section = count * bytes_of(type);
  if (world_size_ == 1) return copy_bytes(to, from, section);
  const auto world = static_cast<std::size_t>(world_size_);
  const auto section_of = [&](int peer) { return from + static_cast<std::size_t>(peer) * section; };
  // The contributions to all ranks share one buffer of the segment, so each gets a W-th of it.
  const Layout layout(section, chunk_bytes_ / world / line_bytes * line_bytes, 1);
  std::vector<std::uint64_t> tickets(world);
  if (host) host->announce(running.call, {});
  for (std::uint64_t k = 0; k < layout.chunks(); ++k) {
    const Range part = layout.chunk(k);
    const std::uint64_t step = running.first_step + k;
    std::vector<const void*> sources(world, section_of(rank_) + part.first);
    for (int peer : peers_.remote()) {
      const auto number = static_cast<std::uint32_t>(k);
      peers_.streams().post_send(peer, running.call, number, section_of(peer) + part.first,
                                 part.bytes);
      sources[static_cast<std::size_t>(peer)] = slices_.at(peer, k);
      tickets[static_cast<std::size_t>(peer)] = peers_.streams().post_receive(
          peer, running.call, number, slices_.at(peer, k), part.bytes);
    }
    for (int peer : peers_.local()) {
      const std::size_t place = static_cast<std::size_t>(peer) * part.bytes;
      copy_bytes(host->contribution(rank_, step) + place, section_of(peer) + part.first,
                 part.bytes);
      sources[static_cast<std::size_t>(peer)] =
          host->contribution(peer, step) + static_cast<std::size_t>(rank_) * part.bytes;
    }
    if (host) host->offer(step + 1);
    peers_.wait_offered(running, step + 1);
    if (k == 0) peers_.check_calls(running);
    peers_.wait_received(running, tickets);
    void* const destination = to + part.first;
    reduce_tree(sources, {&destination, 1}, part.bytes / bytes_of(type), type, op, false);
  }
  peers_.wait_streams_idle(running);
  peers_.finish(running, layout.chunks());
}

void CpuCommunicator::all_gather(const void* send, void* recv, std::size_t count, DataType type,
                                 Stream) {
  const CpuPeers::Running running = peers_.start(CallKind::AllGather, count, type, {send, recv});
  const auto& host = peers_.host();
  const auto* from = static_cast<const unsigned char*>(send);
  auto* to = static_cast<unsigned char*>(recv);
  const std::size_t section = count * bytes_of(type);
  const auto section_of = [&](int peer) { return to + static_cast<std::size_t>(peer) * section; };
  copy_bytes(section_of(rank_), from, section);
  if (world_size_ == 1) return;
  for (int peer : peers_.remote()) {
    peers_.streams().post_send(peer, running.call, 0, section_of(rank_), section);
    peers_.streams().post_receive(peer, running.call, 0, section_of(peer), section);
  }
  const Layout layout(section, chunk_bytes_, 1);
  if (host) host->announce(running.call, {});
  for (std::uint64_t k = 0; host && k < layout.chunks(); ++k) {
    const Range part = layout.chunk(k);
    const std::uint64_t step = running.first_step + k;
    copy_bytes(host->contribution(rank_, step), section_of(rank_) + part.first, part.bytes);
    host->offer(step + 1);
    peers_.wait_offered(running, step + 1);
    if (k == 0) peers_.check_calls(running);
    for (int peer : peers_.local()) {
      copy_bytes(section_of(peer) + part.first, host->contribution(peer, step), part.bytes);
    }
  }
  peers_.wait_streams_idle(running);
  peers_.finish(running, layout.chunks());
}

void CpuCommunicator::broadcast(void* data, std::size_t count, DataType type, int root, Stream) {
  const CpuPeers::Running running =
      peers_.start(CallKind::Broadcast, count, type, {data}, ReduceOp::Sum, root);
  const auto& host = peers_.host();
  auto* bytes = static_cast<unsigned char*>(data);
  const std::size_t size = count * bytes_of(type);
  if (world_size_ == 1) return;
  for (int peer : peers_.remote()) {  // Those without data say only what they call.
    peers_.streams().post_send(peer, running.call, 0, bytes, rank_ == root ? size : 0);
    peers_.streams().post_receive(peer, running.call, 0, bytes, peer == root ? size : 0);
  }
  const Layout layout(size, chunk_bytes_, 1);
  if (host) host->announce(running.call, {});
  for (std::uint64_t k = 0; host && k < layout.chunks(); ++k) {
    const Range part = layout.chunk(k);
    const std::uint64_t step = running.first_step + k;
    if (rank_ == root) copy_bytes(host->contribution(rank_, step), bytes + part.first, part.bytes);
    host->offer(step + 1);
    peers_.wait_offered(running, step + 1);
    if (k == 0) peers_.check_calls(running);
    if (rank_ != root && host->contains(root)) {
      copy_bytes(bytes + part.first, host->contribution(root, step), part.bytes);
    }
  }
  peers_.wait_streams_idle(running);
  peers_.finish(running, layout.chunks());
}

void CpuCommunicator::barrier(Stream) {
  const CpuPeers::Running running = peers_.start(CallKind::Barrier, 0, DataType::UInt8, {});
  const auto& host = peers_.host();
  post_calls(running);
  if (host) {
    host->announce(running.call, {});
    host->offer(running.first_step + 1);
    peers_.wait_offered(running, running.first_step + 1);
    peers_.check_calls(running);
  }
  peers_.wait_streams_idle(running);
  peers_.finish(running, 1);
}

void CpuCommunicator::post_calls(const CpuPeers::Running& running) {
  for (int peer : peers_.remote()) {
    peers_.streams().post_send(peer, running.call, 0, nullptr, 0);
    peers_.streams().post_receive(peer, running.call, 0, nullptr, 0);
  }
}

std::shared_ptr<void> CpuCommunicator::allocate(std::size_t bytes) {
  bytes = std::max(bytes, line_bytes);
  const CpuPeers::Running running = peers_.start(CallKind::Allocate, bytes, DataType::UInt8, {});
  post_calls(running);
  std::shared_ptr<void> shared;
  std::string lack;
  if (peers_.host()) shared = allocate_shared(running, bytes, lack);
  peers_.wait_streams_idle(running);
  peers_.finish(running, 1);
  if (shared) return shared;
  // What was not there to be shared is not there at all.
  return zeroed_memory(bytes, to_string(running.call) + " failed on rank " + std::to_string(rank_),
                       std::move(lack));
}

std::shared_ptr<void> CpuCommunicator::allocate_shared(const CpuPeers::Running& running,
                                                       std::size_t bytes, std::string& lack) {
  const auto& host = peers_.host();
  const std::uint32_t number = host->begin_allocation(bytes, lack);
  host->announce(running.call, {});
  host->offer(running.first_step + 1);
  peers_.wait_offered(running, running.first_step + 1);
  peers_.check_calls(running);
  std::uint64_t mapped = 0;
  for (int peer : peers_.local()) {
    if (host->map_allocation(peer, number)) mapped |= std::uint64_t{1} << peer;
  }
  host->acknowledge(mapped);
  host->combine(running.first_step + 1);
  peers_.wait_combined(running, running.first_step + 1);
  void* const data = host->allocation_data(rank_, number);
  if (data == nullptr) return nullptr;
  const auto acknowledged = [&](int peer) { return host->acknowledged_by(peer); };
  if (std::all_of(peers_.local().begin(), peers_.local().end(), acknowledged)) {
    host->finish_allocation(number);
  }
  return {data, [host = host, number](void*) { host->release_allocation(number); }};
}

}  // namespace ddprun::worker
