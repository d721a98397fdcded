// reduce_scatter, all_gather and broadcast. Header of host_group.h: why two buffers per rank
// are enough.
#include "worker/cpu/cpu_communicator.h"
#include "worker/cpu/layout.h"

namespace ddprun::worker {

void CpuCommunicator::reduce_scatter(const void* send, void* recv, std::size_t count, DataType type,
                                     ReduceOp op, Stream) {
  const Running running = start(CallKind::ReduceScatter, count, type, {send, recv}, op);
  const auto* from = static_cast<const unsigned char*>(send);
  auto* to = static_cast<unsigned char*>(recv);
  const std::size_t section = count * bytes_of(type);
  if (world_size_ == 1) return copy_bytes(to, from, section);
  const auto world = static_cast<std::size_t>(world_size_);
  const auto section_of = [&](int peer) { return from + static_cast<std::size_t>(peer) * section; };
  // The contributions to all ranks share one buffer of the segment, so each gets a W-th of it.
  const Layout layout(section, chunk_bytes_ / world / line_bytes * line_bytes, 1);
  std::vector<std::uint64_t> tickets(world);
  if (host_) host_->announce(running.call, {});
  for (std::uint64_t k = 0; k < layout.chunks(); ++k) {
    const Range part = layout.chunk(k);
    const std::uint64_t step = running.first_step + k;
    std::vector<const void*> sources(world, section_of(rank_) + part.first);
    for (int peer : remote_) {
      const auto number = static_cast<std::uint32_t>(k);
      streams_->post_send(peer, running.call, number, section_of(peer) + part.first, part.bytes);
      sources[static_cast<std::size_t>(peer)] = remote_slice(peer, k);
      tickets[static_cast<std::size_t>(peer)] =
          streams_->post_receive(peer, running.call, number, remote_slice(peer, k), part.bytes);
    }
    for (int peer : local_) {
      const std::size_t place = static_cast<std::size_t>(peer) * part.bytes;
      copy_bytes(host_->contribution(rank_, step) + place, section_of(peer) + part.first,
                 part.bytes);
      sources[static_cast<std::size_t>(peer)] =
          host_->contribution(peer, step) + static_cast<std::size_t>(rank_) * part.bytes;
    }
    if (host_) host_->offer(step + 1);
    wait_offered(running, step + 1);
    if (k == 0) check_calls(running);
    wait_received(running, tickets);
    void* const destination = to + part.first;
    reduce_tree(sources, {&destination, 1}, part.bytes / bytes_of(type), type, op, false);
  }
  wait_streams_idle(running);
  finish(running, layout.chunks());
}

void CpuCommunicator::all_gather(const void* send, void* recv, std::size_t count, DataType type,
                                 Stream) {
  const Running running = start(CallKind::AllGather, count, type, {send, recv});
  const auto* from = static_cast<const unsigned char*>(send);
  auto* to = static_cast<unsigned char*>(recv);
  const std::size_t section = count * bytes_of(type);
  const auto section_of = [&](int peer) { return to + static_cast<std::size_t>(peer) * section; };
  copy_bytes(section_of(rank_), from, section);
  if (world_size_ == 1) return;
  for (int peer : remote_) {
    streams_->post_send(peer, running.call, 0, section_of(rank_), section);
    streams_->post_receive(peer, running.call, 0, section_of(peer), section);
  }
  const Layout layout(section, chunk_bytes_, 1);
  if (host_) host_->announce(running.call, {});
  for (std::uint64_t k = 0; host_ && k < layout.chunks(); ++k) {
    const Range part = layout.chunk(k);
    const std::uint64_t step = running.first_step + k;
    copy_bytes(host_->contribution(rank_, step), section_of(rank_) + part.first, part.bytes);
    host_->offer(step + 1);
    wait_offered(running, step + 1);
    if (k == 0) check_calls(running);
    for (int peer : local_) {
      copy_bytes(section_of(peer) + part.first, host_->contribution(peer, step), part.bytes);
    }
  }
  wait_streams_idle(running);
  finish(running, layout.chunks());
}

void CpuCommunicator::broadcast(void* data, std::size_t count, DataType type, int root, Stream) {
  const Running running = start(CallKind::Broadcast, count, type, {data}, ReduceOp::Sum, root);
  auto* bytes = static_cast<unsigned char*>(data);
  const std::size_t size = count * bytes_of(type);
  if (world_size_ == 1) return;
  for (int peer : remote_) {  // Those without data say only what they call.
    streams_->post_send(peer, running.call, 0, bytes, rank_ == root ? size : 0);
    streams_->post_receive(peer, running.call, 0, bytes, peer == root ? size : 0);
  }
  const Layout layout(size, chunk_bytes_, 1);
  if (host_) host_->announce(running.call, {});
  for (std::uint64_t k = 0; host_ && k < layout.chunks(); ++k) {
    const Range part = layout.chunk(k);
    const std::uint64_t step = running.first_step + k;
    if (rank_ == root) copy_bytes(host_->contribution(rank_, step), bytes + part.first, part.bytes);
    host_->offer(step + 1);
    wait_offered(running, step + 1);
    if (k == 0) check_calls(running);
    if (rank_ != root && host_->contains(root)) {
      copy_bytes(bytes + part.first, host_->contribution(root, step), part.bytes);
    }
  }
  wait_streams_idle(running);
  finish(running, layout.chunks());
}

}  // namespace ddprun::worker
