// all_reduce, reduce_scatter, all_gather and broadcast over MPI.
#include <array>
#include <utility>

#include "worker/cpu/layout.h"
#include "worker/cpu/reduce.h"
#include "worker/mpi/mpi_communicator.h"

namespace ddprun::worker {
namespace {

// Large enough that latency does not count, small enough that combining and moving overlap.
constexpr std::size_t chunk_bytes = 4 << 20;
constexpr std::size_t piece_bytes = 1 << 20;  // Of a broadcast, which goes down a tree.

}  // namespace

// One all_reduce from start to end: while chunk k is combined, the contributions to k + 1 travel.
class MpiCommunicator::AllReduce {
 public:
  AllReduce(MpiCommunicator& self, const Running& running, void* data)
      : self_(self),
        running_(running),
        data_(static_cast<unsigned char*>(data)),
        layout_(running.call.count * bytes_of(running.call.type), chunk_bytes, self.world_size_),
        slice_bytes_max_(layout_.slice(0, 0).bytes) {
    self_.scratch_.resize(2 * slice_bytes_max_ * static_cast<std::size_t>(self.world_size_));
  }

  void run() {
    post_contributions(0);
    for (std::uint64_t k = 0; k < layout_.chunks(); ++k) {
      // The sends too: a peer's result will come to where its contribution is sent from.
      self_.wait(running_, contributions_[k % 2]);
      if (k + 1 < layout_.chunks()) post_contributions(k + 1);
      combine(k);
      post_results(k);
    }
    self_.wait(running_, results_);
  }

 private:
  unsigned char* scratch(std::uint64_t k, int peer) {
    const std::size_t set = k % 2 * static_cast<std::size_t>(self_.world_size_);
    return self_.scratch_.data() + (set + static_cast<std::size_t>(peer)) * slice_bytes_max_;
  }

  void post_contributions(std::uint64_t k) {
    const Range own = layout_.slice(k, self_.rank_);
    for (const int peer : self_.peers_) {
      const Range theirs = layout_.slice(k, peer);
      Transfers& to = contributions_[k % 2];
      self_.post_receive(to, scratch(k, peer), own.bytes, peer, contribution_tag);
      self_.post_send(to, data_ + theirs.first, theirs.bytes, peer, contribution_tag);
    }
  }

  void combine(std::uint64_t k) {
    const Range own = layout_.slice(k, self_.rank_);
    std::vector<const void*> sources(static_cast<std::size_t>(self_.world_size_),
                                     data_ + own.first);
    for (const int peer : self_.peers_) {
      sources[static_cast<std::size_t>(peer)] = scratch(k, peer);
    }
    void* const result = data_ + own.first;
    const Call& call = running_.call;
    reduce_tree(sources, {&result, 1}, own.bytes / bytes_of(call.type), call.type, call.op, false);
  }

  void post_results(std::uint64_t k) {
    const Range own = layout_.slice(k, self_.rank_);
    for (const int peer : self_.peers_) {
      const Range theirs = layout_.slice(k, peer);
      self_.post_receive(results_, data_ + theirs.first, theirs.bytes, peer, result_tag);
      self_.post_send(results_, data_ + own.first, own.bytes, peer, result_tag);
    }
  }

  MpiCommunicator& self_;
  const Running& running_;
  unsigned char* data_;
  Layout layout_;
  std::size_t slice_bytes_max_;  // The first slice of the first chunk is the largest.
  std::array<Transfers, 2> contributions_;
  Transfers results_;
};

void MpiCommunicator::all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                                 Stream) {
  const Running running = start(CallKind::AllReduce, count, type, {data}, op);
  if (world_size_ > 1 && count > 0) AllReduce(*this, running, data).run();
}

void MpiCommunicator::reduce_scatter(const void* send, void* recv, std::size_t count, DataType type,
                                     ReduceOp op, Stream) {
  const Running running = start(CallKind::ReduceScatter, count, type, {send, recv}, op);
  const auto* from = static_cast<const unsigned char*>(send);
  auto* to = static_cast<unsigned char*>(recv);
  const std::size_t section = count * bytes_of(type);
  const auto world = static_cast<std::size_t>(world_size_);
  if (world_size_ == 1) return copy_bytes(to, from, section);
  const auto section_of = [&](int peer) { return from + static_cast<std::size_t>(peer) * section; };
  const std::size_t part_max =
      std::max(chunk_bytes / world / line_bytes, std::size_t{1}) * line_bytes;
  const Layout layout(section, part_max, 1);
  scratch_.resize(part_max * world);
  for (std::uint64_t k = 0; k < layout.chunks(); ++k) {
    const Range part = layout.chunk(k);
    std::vector<const void*> sources(world, section_of(rank_) + part.first);
    Transfers transfers;
    for (const int peer : peers_) {
      unsigned char* const into = scratch_.data() + static_cast<std::size_t>(peer) * part_max;
      sources[static_cast<std::size_t>(peer)] = into;
      post_receive(transfers, into, part.bytes, peer, contribution_tag);
      post_send(transfers, section_of(peer) + part.first, part.bytes, peer, contribution_tag);
    }
    wait(running, transfers);
    void* const destination = to + part.first;
    reduce_tree(sources, {&destination, 1}, part.bytes / bytes_of(type), type, op, false);
  }
}

void MpiCommunicator::all_gather(const void* send, void* recv, std::size_t count, DataType type,
                                 Stream) {
  const Running running = start(CallKind::AllGather, count, type, {send, recv});
  auto* to = static_cast<unsigned char*>(recv);
  const std::size_t section = count * bytes_of(type);
  const auto section_of = [&](int peer) { return to + static_cast<std::size_t>(peer) * section; };
  copy_bytes(section_of(rank_), send, section);
  Transfers transfers;
  for (const int peer : peers_) {
    post_receive(transfers, section_of(peer), section, peer, contribution_tag);
    post_send(transfers, section_of(rank_), section, peer, contribution_tag);
  }
  wait(running, transfers);
}

// Down a binomial tree with the root on top, piece by piece.
void MpiCommunicator::broadcast(void* data, std::size_t count, DataType type, int root, Stream) {
  const Running running = start(CallKind::Broadcast, count, type, {data}, ReduceOp::Sum, root);
  auto* bytes = static_cast<unsigned char*>(data);
  const std::size_t size = count * bytes_of(type);
  const int place = (rank_ - root + world_size_) % world_size_;
  int above = 1;  // The lowest bit that is set: who is above differs in it.
  while (above < world_size_ && (place & above) == 0) above *= 2;
  const auto rank_at = [&](int other) { return (other + root) % world_size_; };
  Transfers down;
  for (std::size_t first = 0; first < size; first += piece_bytes) {
    const std::size_t piece = std::min(piece_bytes, size - first);
    if (place != 0) {
      Transfers up;
      post_receive(up, bytes + first, piece, rank_at(place - above), contribution_tag);
      wait(running, up);
    }
    for (int below = above / 2; below > 0; below /= 2) {
      if (place + below < world_size_) {
        post_send(down, bytes + first, piece, rank_at(place + below), contribution_tag);
      }
    }
  }
  wait(running, down);
}

}  // namespace ddprun::worker
