// all_reduce over the CPU communicator, the call that training lives on: chunks go through as in a
// pipeline, so that copying, sending and adding up overlap. The plan is in cpu_communicator.h; why
// two buffers per rank are enough, in host_group.h.
#include <cassert>

#include "worker/cpu/cpu_communicator.h"
#include "worker/cpu/layout.h"

namespace ddprun::worker {
namespace {

// Larger results in place are written past the cache: they would push out what is still needed.
constexpr std::size_t streaming_bytes_min = 16u << 20;

}  // namespace

// One all_reduce from start to end.
class CpuCommunicator::AllReduce {
 public:
  AllReduce(CpuCommunicator& self, const Running& running, void* data)
      : self_(self),
        running_(running),
        data_(static_cast<unsigned char*>(data)),
        bytes_(running.call.count * bytes_of(running.call.type)),
        layout_(bytes_, self.chunk_bytes_, self.world_size_),
        tickets_(static_cast<std::size_t>(self.world_size_)),
        next_tickets_(tickets_) {}

  void run() {
    if (self_.host_) announce();
    post_contributions(0);
    for (std::uint64_t k = 0; k < layout_.chunks(); ++k) {
      // Whoever has offered step k is done with the buffers of step k - 1, which stage() fills
      // again.
      self_.wait_offered(running_, step(k) + 1);
      // What a local peer calls is readable only once it has offered. Remote ones say it in each
      // frame.
      if (k == 0) meet_peers();
      tickets_ = next_tickets_;
      // One chunk ahead: the sockets, and the peers, have chunk k + 1 while this rank adds up chunk
      // k. More would need a third buffer per rank.
      if (k + 1 < layout_.chunks()) {
        if (self_.host_ && !in_place()) stage(k + 1);
        post_contributions(k + 1);
      }
      self_.wait_received(running_, tickets_);
      combine(k);
      post_results(k);
      // In place the owners of the slices wrote their results into our memory themselves.
      if (self_.host_ && !in_place()) fetch(k);
    }
    // Until then peers of this host may still read our contribution, and write into our memory ...
    if (self_.host_) self_.wait_combined(running_, step(layout_.chunks()));
    // ... and sockets read from it: the caller may change it as soon as we return.
    self_.wait_streams_idle(running_);
    self_.finish(running_, layout_.chunks());
  }

 private:
  std::uint64_t step(std::uint64_t k) const { return running_.first_step + k; }
  bool in_place() const { return place_.allocation != 0; }

  void announce() {
    if (bytes_ != 0) place_ = self_.host_->find(data_, bytes_);
    self_.host_->announce(running_.call, place_);
    if (in_place()) {
      // All of it can be read where it lies, and no buffer is used that a later step would need.
      self_.host_->offer(step(layout_.chunks()));
    } else {
      stage(0);
    }
  }

  void stage(std::uint64_t k) {
    const Range chunk = layout_.chunk(k);
    copy_bytes(self_.host_->contribution(self_.rank_, step(k)), data_ + chunk.first, chunk.bytes);
    self_.host_->offer(step(k) + 1);
  }

  // The local peers have said what they call and where their data lies.
  void meet_peers() {
    self_.check_calls(running_);
    mapped_.assign(static_cast<std::size_t>(self_.world_size_), nullptr);
    for (int peer : self_.local_) {
      const HostGroup::Place place = self_.host_->place(peer, running_.call.sequence);
      if (place.allocation == 0) {
        results_wanted_ = true;
        continue;
      }
      auto* base =
          static_cast<unsigned char*>(self_.host_->allocation_data(peer, place.allocation));
      self_.require(base != nullptr, running_.call,
                    "allocation " + std::to_string(place.allocation) + " of rank " +
                        std::to_string(peer) + " is not mapped here");
      mapped_[static_cast<std::size_t>(peer)] = base + place.offset;
    }
  }

  // Frames without payload only tell what is called; one per call is enough.
  void post_contributions(std::uint64_t k) {
    const Range own = layout_.slice(k, self_.rank_);
    for (int peer : self_.remote_) {
      const Range theirs = layout_.slice(k, peer);
      const auto part = static_cast<std::uint32_t>(2 * k);
      if (theirs.bytes != 0 || k == 0) {
        self_.streams_->post_send(peer, running_.call, part, data_ + theirs.first, theirs.bytes);
      }
      if (own.bytes != 0 || k == 0) {
        next_tickets_[static_cast<std::size_t>(peer)] = self_.streams_->post_receive(
            peer, running_.call, part, self_.remote_slice(peer, k), own.bytes);
      }
    }
  }

  void post_results(std::uint64_t k) {
    const Range own = layout_.slice(k, self_.rank_);
    for (int peer : self_.remote_) {
      const Range theirs = layout_.slice(k, peer);
      const auto part = static_cast<std::uint32_t>(2 * k + 1);
      if (own.bytes != 0) {
        self_.streams_->post_send(peer, running_.call, part, data_ + own.first, own.bytes);
      }
      // Received to where our contribution is sent from, perhaps still now: the peer cannot send a
      // result before it has all of that contribution.
      if (theirs.bytes != 0) {
        self_.streams_->post_receive(peer, running_.call, part, data_ + theirs.first, theirs.bytes);
      }
    }
  }

  void combine(std::uint64_t k) {
    const Range own = layout_.slice(k, self_.rank_);
    assert(self_.remote_.empty() || own.bytes <= self_.slice_bytes_max());
    std::vector<const void*> sources(static_cast<std::size_t>(self_.world_size_));
    std::vector<void*> destinations{data_ + own.first};
    sources[static_cast<std::size_t>(self_.rank_)] = data_ + own.first;
    for (int peer : self_.remote_) {
      sources[static_cast<std::size_t>(peer)] = self_.remote_slice(peer, k);
    }
    for (int peer : self_.local_) {
      unsigned char* mapped = mapped_[static_cast<std::size_t>(peer)];
      if (mapped != nullptr) {
        sources[static_cast<std::size_t>(peer)] = mapped + own.first;
        destinations.push_back(mapped + own.first);
      } else {
        sources[static_cast<std::size_t>(peer)] =
            self_.host_->contribution(peer, step(k)) + (own.first - layout_.chunk(k).first);
      }
    }
    // One peer whose memory is not shared is enough; the others have theirs in place all the same.
    if (results_wanted_) destinations.push_back(self_.host_->result(self_.rank_, step(k)));
    const bool streaming = in_place() && !results_wanted_ && bytes_ >= streaming_bytes_min;
    reduce_tree(sources, destinations, own.bytes / bytes_of(running_.call.type), running_.call.type,
                running_.call.op, streaming);
    if (self_.host_) self_.host_->combine(step(k) + 1);
  }

  // Copies the local peers' results out of their buffers.
  void fetch(std::uint64_t k) {
    self_.wait_combined(running_, step(k) + 1);
    for (int peer : self_.local_) {
      const Range theirs = layout_.slice(k, peer);
      copy_bytes(data_ + theirs.first, self_.host_->result(peer, step(k)), theirs.bytes);
    }
  }

  CpuCommunicator& self_;
  const Running& running_;
  unsigned char* data_;
  std::size_t bytes_;
  Layout layout_;
  HostGroup::Place place_;
  bool results_wanted_ = false;         // A local peer reads results from the shared buffers.
  std::vector<unsigned char*> mapped_;  // Local peers' data where it can be used in place.
  std::vector<std::uint64_t> tickets_, next_tickets_;  // Contributions to this and the next chunk.
};

void CpuCommunicator::all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                                 Stream) {
  const Running running = start(CallKind::AllReduce, count, type, {data}, op);
  if (world_size_ == 1) return;
  AllReduce(*this, running, data).run();
}

}  // namespace ddprun::worker
