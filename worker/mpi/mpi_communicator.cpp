// The collectives over MPI, and the module's entry point.
#include "worker/mpi/mpi_communicator.h"

#include <array>
#include <cassert>
#include <utility>

#include "worker/communicator_modules.h"
#include "worker/cpu/layout.h"
#include "worker/cpu/reduce.h"
#include "worker/declare_failure.h"
#include "worker/host_memory.h"

namespace ddprun::worker {
namespace {

// Large enough that latency does not count, small enough that combining and moving overlap.
constexpr std::size_t chunk_bytes = 4 << 20;
constexpr std::size_t piece_bytes = 1 << 20;  // Of a broadcast, which goes down a tree.

}  // namespace

MpiCommunicator::MpiCommunicator(const WorkerEnv& env, const CommunicatorOptions& options)
    : peers_(env, options), messages_(peers_) {}

MpiCommunicator::~MpiCommunicator() {
  // As PeerWatch does: no goodbye. First of all, because what follows may take a moment.
  if (std::uncaught_exceptions() > exceptions_before_) {
    abort("rank " + std::to_string(rank()) + failure_without_words);
  } else {
    peers_.control().tell_untold();
  }
  // A call that failed has left receives behind, and MPI writes to them whenever data comes.
  if (peers_.control().aborted()) new std::vector<unsigned char>(std::move(scratch_));
}

MpiPeers::Running MpiCommunicator::start(CallKind kind, std::size_t count, DataType type,
                                         std::initializer_list<const void*> pointers, ReduceOp op,
                                         int root) {
  messages_.move_on();
  return peers_.start(kind, count, type, pointers, op, root);
}

// One all_reduce from start to end: while chunk k is combined, the contributions to k + 1 travel.
class MpiCommunicator::AllReduce {
 public:
  AllReduce(MpiCommunicator& self, const MpiPeers::Running& running, void* data)
      : peers_(self.peers_),
        scratch_(self.scratch_),
        running_(running),
        data_(static_cast<unsigned char*>(data)),
        layout_(running.call.count * bytes_of(running.call.type), chunk_bytes, self.world_size()),
        slice_bytes_max_(layout_.slice(0, 0).bytes) {
    scratch_.resize(2 * slice_bytes_max_ * static_cast<std::size_t>(self.world_size()));
  }

  void run() {
    post_contributions(0);
    for (std::uint64_t k = 0; k < layout_.chunks(); ++k) {
      // The sends too: a peer's result will come to where its contribution is sent from.
      peers_.wait(running_, contributions_[k % 2]);
      if (k + 1 < layout_.chunks()) post_contributions(k + 1);
      combine(k);
      post_results(k);
    }
    peers_.wait(running_, results_);
  }

 private:
  unsigned char* scratch(std::uint64_t k, int peer) {
    const std::size_t set = k % 2 * static_cast<std::size_t>(peers_.world_size());
    return scratch_.data() + (set + static_cast<std::size_t>(peer)) * slice_bytes_max_;
  }

  void post_contributions(std::uint64_t k) {
    const Range own = layout_.slice(k, peers_.rank());
    for (const int peer : peers_.others()) {
      const Range theirs = layout_.slice(k, peer);
      MpiPeers::Transfers& to = contributions_[k % 2];
      peers_.post_receive(to, scratch(k, peer), own.bytes, peer, contribution_tag);
      peers_.post_send(to, data_ + theirs.first, theirs.bytes, peer, contribution_tag);
    }
  }

  void combine(std::uint64_t k) {
    const Range own = layout_.slice(k, peers_.rank());
    assert(own.bytes <= slice_bytes_max_);
    std::vector<const void*> sources(static_cast<std::size_t>(peers_.world_size()),
                                     data_ + own.first);
    for (const int peer : peers_.others()) {
      sources[static_cast<std::size_t>(peer)] = scratch(k, peer);
    }
    void* const result = data_ + own.first;
    const Call& call = running_.call;
    reduce_tree(sources, {&result, 1}, own.bytes / bytes_of(call.type), call.type, call.op, false);
  }

  void post_results(std::uint64_t k) {
    const Range own = layout_.slice(k, peers_.rank());
    for (const int peer : peers_.others()) {
      const Range theirs = layout_.slice(k, peer);
      peers_.post_receive(results_, data_ + theirs.first, theirs.bytes, peer, result_tag);
      peers_.post_send(results_, data_ + own.first, own.bytes, peer, result_tag);
    }
  }

  MpiPeers& peers_;
  std::vector<unsigned char>& scratch_;
  const MpiPeers::Running& running_;
  unsigned char* data_;
  Layout layout_;
  std::size_t slice_bytes_max_;  // The first slice of the first chunk is the largest.
  std::array<MpiPeers::Transfers, 2> contributions_;
  MpiPeers::Transfers results_;
};

void MpiCommunicator::all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                                 Stream) {
  const MpiPeers::Running running = start(CallKind::AllReduce, count, type, {data}, op);
  if (world_size() > 1 && count > 0) AllReduce(*this, running, data).run();
}

void MpiCommunicator::reduce_scatter(const void* send, void* recv, std::size_t count, DataType type,
                                     ReduceOp op, Stream) {
  const MpiPeers::Running running = start(CallKind::ReduceScatter, count, type, {send, recv}, op);
  const auto* from = static_cast<const unsigned char*>(send);
  auto* to = static_cast<unsigned char*>(recv);
  const std::size_t section = count * bytes_of(type);
  const auto world = static_cast<std::size_t>(world_size());
  if (world_size() == 1) return copy_bytes(to, from, section);
  const auto section_of = [&](int peer) { return from + static_cast<std::size_t>(peer) * section; };
  const std::size_t part_max =
      std::max(chunk_bytes / world / line_bytes, std::size_t{1}) * line_bytes;
  const Layout layout(section, part_max, 1);
  scratch_.resize(part_max * world);
  for (std::uint64_t k = 0; k < layout.chunks(); ++k) {
    const Range part = layout.chunk(k);
    std::vector<const void*> sources(world, section_of(rank()) + part.first);
    MpiPeers::Transfers transfers;
    for (const int peer : peers_.others()) {
      unsigned char* const into = scratch_.data() + static_cast<std::size_t>(peer) * part_max;
      sources[static_cast<std::size_t>(peer)] = into;
      peers_.post_receive(transfers, into, part.bytes, peer, contribution_tag);
      peers_.post_send(transfers, section_of(peer) + part.first, part.bytes, peer,
                       contribution_tag);
    }
    peers_.wait(running, transfers);
    void* const destination = to + part.first;
    reduce_tree(sources, {&destination, 1}, part.bytes / bytes_of(type), type, op, false);
  }
}

void MpiCommunicator::all_gather(const void* send, void* recv, std::size_t count, DataType type,
                                 Stream) {
  const MpiPeers::Running running = start(CallKind::AllGather, count, type, {send, recv});
  auto* to = static_cast<unsigned char*>(recv);
  const std::size_t section = count * bytes_of(type);
  const auto section_of = [&](int peer) { return to + static_cast<std::size_t>(peer) * section; };
  copy_bytes(section_of(rank()), send, section);
  MpiPeers::Transfers transfers;
  for (const int peer : peers_.others()) {
    peers_.post_receive(transfers, section_of(peer), section, peer, contribution_tag);
    peers_.post_send(transfers, section_of(rank()), section, peer, contribution_tag);
  }
  peers_.wait(running, transfers);
}

// Down a binomial tree with the root on top, piece by piece.
void MpiCommunicator::broadcast(void* data, std::size_t count, DataType type, int root, Stream) {
  const MpiPeers::Running running =
      start(CallKind::Broadcast, count, type, {data}, ReduceOp::Sum, root);
  auto* bytes = static_cast<unsigned char*>(data);
  const std::size_t size = count * bytes_of(type);
  const int place = (rank() - root + world_size()) % world_size();
  int above = 1;  // The lowest bit that is set: who is above differs in it.
  while (above < world_size() && (place & above) == 0) above *= 2;
  const auto rank_at = [&](int other) { return (other + root) % world_size(); };
  MpiPeers::Transfers down;
  for (std::size_t first = 0; first < size; first += piece_bytes) {
    const std::size_t piece = std::min(piece_bytes, size - first);
    if (place != 0) {
      MpiPeers::Transfers up;
      peers_.post_receive(up, bytes + first, piece, rank_at(place - above), contribution_tag);
      peers_.wait(running, up);
    }
    for (int below = above / 2; below > 0; below /= 2) {
      if (place + below < world_size()) {
        peers_.post_send(down, bytes + first, piece, rank_at(place + below), contribution_tag);
      }
    }
  }
  peers_.wait(running, down);
}

void MpiCommunicator::barrier(Stream) { start(CallKind::Barrier, 0, DataType::UInt8, {}); }

std::shared_ptr<void> MpiCommunicator::allocate(std::size_t bytes) {
  bytes = std::max(bytes, line_bytes);
  const MpiPeers::Running running = start(CallKind::Allocate, bytes, DataType::UInt8, {});
  return zeroed_memory(bytes,
                       to_string(running.call) + " failed on rank " + std::to_string(rank()));
}

}  // namespace ddprun::worker

extern "C" __attribute__((visibility("default"))) ddprun::worker::Communicator*
ddprun_make_mpi_communicator_3(const ddprun::worker::WorkerEnv* env,
                               const ddprun::worker::CommunicatorOptions* options, char* error,
                               std::size_t error_bytes) {
  return ddprun::worker::make_for_program<ddprun::worker::MpiCommunicator>(*env, *options, error,
                                                                           error_bytes);
}
