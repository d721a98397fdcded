// The chunks of an all_reduce go through as in a pipeline, so that copying, sending and adding up
// overlap.
#include "worker/cpu/cpu_all_reduce.h"

#include <cassert>

#include "worker/cpu/reduce.h"

namespace ddprun::worker {
namespace {

// Larger results in place are written past the cache: they would push out what is still needed.
constexpr std::size_t streaming_bytes_min = 16u << 20;

}  // namespace

CpuAllReduce::CpuAllReduce(CpuPeers& peers, RemoteSlices& slices, std::size_t chunk_bytes,
                           const CpuPeers::Running& running, void* data)
    : peers_(peers),
      host_(peers.host().get()),
      slices_(slices),
      running_(running),
      data_(static_cast<unsigned char*>(data)),
      bytes_(running.call.count * bytes_of(running.call.type)),
      layout_(bytes_, chunk_bytes, peers.world_size()),
      tickets_(static_cast<std::size_t>(peers.world_size())),
      next_tickets_(tickets_) {
  assert(peers.world_size() > 1);
}

void CpuAllReduce::run() {
  if (host_) announce();
  post_contributions(0);
  for (std::uint64_t k = 0; k < layout_.chunks(); ++k) {
    // Whoever has offered step k is done with the buffers of step k - 1, which stage() fills again.
    // A peer in place has offered all steps from the start; fetch(k - 1) has waited for that one.
    peers_.wait_offered(running_, step(k) + 1);
    // What a local peer calls is readable only once it has offered. Remote ones say it in each
    // frame.
    if (k == 0) meet_peers();
    tickets_ = next_tickets_;
    // One chunk ahead: the sockets, and the peers, have chunk k + 1 while this rank adds up chunk
    // k. More would need a third buffer per rank.
    if (k + 1 < layout_.chunks()) {
      if (host_ && !in_place()) stage(k + 1);
      post_contributions(k + 1);
    }
    peers_.wait_received(running_, tickets_);
    combine(k);
    post_results(k);
    // In place the owners of the slices wrote their results into our memory themselves.
    if (host_ && !in_place()) fetch(k);
  }
  // Until then peers of this host may still read our contribution, and write into our memory ...
  if (host_) peers_.wait_combined(running_, step(layout_.chunks()));
  // ... and sockets read from it: the caller may change it as soon as we return.
  peers_.wait_streams_idle(running_);
  peers_.finish(running_, layout_.chunks());
}

void CpuAllReduce::announce() {
  if (bytes_ != 0) place_ = host_->find(data_, bytes_);
  host_->announce(running_.call, place_);
  if (in_place()) {
    // All of it can be read where it lies, and no buffer is used that a later step would need.
    host_->offer(step(layout_.chunks()));
  } else {
    stage(0);
  }
}

void CpuAllReduce::stage(std::uint64_t k) {
  assert(k < 2 || host_->all_combined(step(k) - 1));  // The buffer of step k - 2 is free.
  const Range chunk = layout_.chunk(k);
  copy_bytes(host_->contribution(peers_.rank(), step(k)), data_ + chunk.first, chunk.bytes);
  host_->offer(step(k) + 1);
}

// The local peers have said what they call and where their data lies.
void CpuAllReduce::meet_peers() {
  peers_.check_calls(running_);
  mapped_.assign(static_cast<std::size_t>(peers_.world_size()), nullptr);
  for (int peer : peers_.local()) {
    const HostGroup::Place place = host_->place(peer, running_.call.sequence);
    if (place.allocation == 0) {
      results_wanted_ = true;
      continue;
    }
    auto* base = static_cast<unsigned char*>(host_->allocation_data(peer, place.allocation));
    if (base == nullptr) {
      peers_.guard().fail(running_.call, "rank " + std::to_string(peers_.rank()) + ": allocation " +
                                             std::to_string(place.allocation) + " of rank " +
                                             std::to_string(peer) + " is not mapped here");
    }
    mapped_[static_cast<std::size_t>(peer)] = base + place.offset;
  }
}

// Frames without payload only tell what is called; one per call is enough.
void CpuAllReduce::post_contributions(std::uint64_t k) {
  const Range own = layout_.slice(k, peers_.rank());
  for (int peer : peers_.remote()) {
    const Range theirs = layout_.slice(k, peer);
    const auto part = static_cast<std::uint32_t>(2 * k);
    if (theirs.bytes != 0 || k == 0) {
      peers_.streams().post_send(peer, running_.call, part, data_ + theirs.first, theirs.bytes);
    }
    if (own.bytes != 0 || k == 0) {
      next_tickets_[static_cast<std::size_t>(peer)] =
          peers_.streams().post_receive(peer, running_.call, part, slices_.at(peer, k), own.bytes);
    }
  }
}

void CpuAllReduce::post_results(std::uint64_t k) {
  const Range own = layout_.slice(k, peers_.rank());
  for (int peer : peers_.remote()) {
    const Range theirs = layout_.slice(k, peer);
    const auto part = static_cast<std::uint32_t>(2 * k + 1);
    if (own.bytes != 0) {
      peers_.streams().post_send(peer, running_.call, part, data_ + own.first, own.bytes);
    }
    // Received to where our contribution is sent from, perhaps still now: the peer cannot send a
    // result before it has all of that contribution.
    if (theirs.bytes != 0) {
      peers_.streams().post_receive(peer, running_.call, part, data_ + theirs.first, theirs.bytes);
    }
  }
}

void CpuAllReduce::combine(std::uint64_t k) {
  const Range own = layout_.slice(k, peers_.rank());
  assert(peers_.remote().empty() || own.bytes <= slices_.slice_bytes_max());
  std::vector<const void*> sources(static_cast<std::size_t>(peers_.world_size()));
  std::vector<void*> destinations{data_ + own.first};
  sources[static_cast<std::size_t>(peers_.rank())] = data_ + own.first;
  for (int peer : peers_.remote()) {
    sources[static_cast<std::size_t>(peer)] = slices_.at(peer, k);
  }
  for (int peer : peers_.local()) {
    unsigned char* mapped = mapped_[static_cast<std::size_t>(peer)];
    if (mapped != nullptr) {
      sources[static_cast<std::size_t>(peer)] = mapped + own.first;
      destinations.push_back(mapped + own.first);
    } else {
      sources[static_cast<std::size_t>(peer)] =
          host_->contribution(peer, step(k)) + (own.first - layout_.chunk(k).first);
    }
  }
  // One peer whose memory is not shared is enough; the others have theirs in place all the same.
  if (results_wanted_) destinations.push_back(host_->result(peers_.rank(), step(k)));
  const bool streaming = in_place() && !results_wanted_ && bytes_ >= streaming_bytes_min;
  reduce_tree(sources, destinations, own.bytes / bytes_of(running_.call.type), running_.call.type,
              running_.call.op, streaming);
  if (host_) host_->combine(step(k) + 1);
}

void CpuAllReduce::fetch(std::uint64_t k) {
  peers_.wait_combined(running_, step(k) + 1);
  for (int peer : peers_.local()) {
    const Range theirs = layout_.slice(k, peer);
    copy_bytes(data_ + theirs.first, host_->result(peer, step(k)), theirs.bytes);
  }
}

}  // namespace ddprun::worker
