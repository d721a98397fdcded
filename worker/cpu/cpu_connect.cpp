// The steps of connecting, each of which needs what all ranks said in the one before.
#include "worker/cpu/cpu_connect.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <thread>

#include "rendezvous/counted.h"
#include "worker/cpu/layout.h"
#include "worker/cpu/reduce.h"
#include "worker/meeting.h"
#include "worker/own_attempt.h"
#include "worker/peers/mesh.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

std::string machine_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id.empty() ? "-" : id;
}

class Connecting {
 public:
  Connecting(int rank, int world_size, Epoch epoch, AddressExchange& exchange,
             const CpuCommunicatorOptions& options)
      : rank_(rank),
        world_size_(world_size),
        epoch_(epoch),
        exchange_(exchange),
        options_(options),
        deadline_(Clock::now() + options.common.connect_timeout),
        segments_(static_cast<std::size_t>(world_size)) {}

  CpuPeers::Parts run() {
    const std::string ip = exchange_.local_address();
    // Listens before the address is published: whoever reads it may call at once.
    Mesh mesh(rank_, epoch_, ip, options_.key ? options_.key : job_key(), options_.encrypt);
    create_segment();
    publish(mesh, ip);
    map_segments();
    agree_on_segments();
    return assemble(
        mesh.connect(addresses_, deadline_, options_.common.interrupt_fd, exchange_.wait_words()));
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  void create_segment() {
    if (!options_.common.shared_memory) return;
    try {
      segments_[at(rank_)] = SharedSegment::create(HostGroup::segment_bytes(options_.chunk_bytes));
    } catch (const std::exception& error) {
      notes_ += std::string("; no shared memory here (") + error.what() + ")";
    }
  }

  void publish(const Mesh& mesh, const std::string& ip) {
    PeerAddress mine;
    mine.host = options_.host.empty() ? machine_id() : options_.host;
    mine.ip = ip;
    mine.port = mesh.port();
    mine.secret = mesh.secret();
    mine.encrypts = options_.encrypt;
    mine.world_size = world_size_;
    mine.group = options_.common.group;
    mine.segment.pid = ::getpid();
    if (segments_[at(rank_)]) mine.segment = segments_[at(rank_)].address();
    addresses_ = parse_peer_addresses(exchange_.all_gather(to_text(mine), deadline_), rank_);
    check_encryption();
  }

  // They would not understand each other; this says so in words.
  void check_encryption() const {
    for (int peer = 0; peer < world_size_; ++peer) {
      if (addresses_[at(peer)].encrypts == options_.encrypt) continue;
      const auto encrypting = [](int rank, bool encrypts) {
        return "rank " + std::to_string(rank) + (encrypts ? " encrypts" : " does not encrypt");
      };
      throw CommunicatorError(encrypting(rank_, options_.encrypt) + " the gradients, and " +
                              encrypting(peer, !options_.encrypt) +
                              ": give --encrypt-gradients on all nodes, or on none");
    }
  }

  void map_segments() {
    if (!segments_[at(rank_)]) return;
    for (int peer = 0; peer < world_size_; ++peer) {
      const PeerAddress& theirs = addresses_[at(peer)];
      if (peer == rank_ || theirs.host != addresses_[at(rank_)].host) continue;
      try {
        segments_[at(peer)] = SharedSegment::open(theirs.segment);
      } catch (const std::exception& error) {
        notes_ += "; TCP to rank " + std::to_string(peer) + " of this host (" + error.what() + ")";
      }
    }
  }

  // Memory is shared by two ranks only if each has mapped the other's.
  void agree_on_segments() {
    std::string mapped;
    for (const SharedSegment& segment : segments_) mapped += segment ? '1' : '0';
    const auto all = exchange_.all_gather(mapped, deadline_);
    for (int peer = 0; peer < world_size_; ++peer) {
      if (peer == rank_ || !segments_[at(peer)]) continue;
      const std::string& theirs = all[at(peer)];
      if (theirs.size() == all.size() && theirs[at(rank_)] == '1') continue;
      segments_[at(peer)] = SharedSegment();
      notes_ += "; TCP to rank " + std::to_string(peer) + ", which could not map our memory";
    }
  }

  std::string describe(int sharing) const {
    std::set<std::string> hosts;
    for (const PeerAddress& address : addresses_) hosts.insert(address.host);
    const bool all = sharing == world_size_;
    return "cpu: " + rendezvous::counted(world_size_, "rank") + " on " +
           rendezvous::counted(std::ssize(hosts), "host") + ", " +
           (all           ? "shared memory"
            : sharing > 1 ? "shared memory + TCP"
                          : "TCP") +
           (options_.encrypt && !all ? ", encrypted" : "") + notes_;
  }

  CpuPeers::Parts assemble(std::vector<PeerSockets> sockets) {
    CpuPeers::Parts parts;
    parts.rank = rank_;
    parts.world_size = world_size_;
    parts.watched = to_watch(sockets, addresses_);
    std::vector<PeerLink> data;
    for (PeerSockets& peer : sockets) data.push_back(std::move(peer.data));
    parts.streams = std::make_unique<PeerStreams>(rank_, epoch_, std::move(data));
    const auto sharing = std::count_if(segments_.begin(), segments_.end(),
                                       [](const SharedSegment& segment) { return bool(segment); });
    parts.description = describe(static_cast<int>(sharing));
    // Spinning helps only if all whom we wait for can run meanwhile.
    parts.spin = sharing <= static_cast<long>(std::thread::hardware_concurrency());
    if (sharing > 1) {
      parts.host = std::make_shared<HostGroup>(rank_, std::move(segments_), options_.chunk_bytes);
    }
    return parts;
  }

  int rank_;
  int world_size_;
  Epoch epoch_;
  AddressExchange& exchange_;
  const CpuCommunicatorOptions& options_;
  Clock::time_point deadline_;
  std::vector<SharedSegment> segments_;
  std::vector<PeerAddress> addresses_;
  std::string notes_;  // What falls back to TCP, and why.
};

CpuPeers::Parts lone_rank() {
  CpuPeers::Parts parts;
  parts.description = "cpu: 1 rank";
  parts.watched.resize(1);
  parts.streams = std::make_unique<PeerStreams>(0, 0, std::vector<PeerLink>(1));
  return parts;
}

void check_world(int rank, int world_size) {
  if (world_size >= 1 && world_size <= tree_ranks_max && rank >= 0 && rank < world_size) return;
  throw CommunicatorError("no CPU communicator for rank " + std::to_string(rank) + " of " +
                          std::to_string(world_size) + ": at most " +
                          std::to_string(tree_ranks_max) + " ranks, numbered from 0");
}

}  // namespace

CpuPeers::Parts connect_cpu_peers(int rank, int world_size, Epoch epoch, AddressExchange& exchange,
                                  const CpuCommunicatorOptions& options) {
  check_world(rank, world_size);
  // Each rank's slice is whole cache lines, and none may be left without.
  if (options.chunk_bytes % line_bytes != 0 ||
      options.chunk_bytes < line_bytes * static_cast<std::size_t>(world_size)) {
    throw CommunicatorError("chunk_bytes must be a multiple of 64 and hold 64 bytes per rank");
  }
  if (world_size == 1) return lone_rank();
  return Connecting(rank, world_size, epoch, exchange, options).run();
}

void prepare_cpu_peers() {
  SharedSegment::prepare(HostGroup::segment_bytes(CpuCommunicatorOptions().chunk_bytes));
}

CpuPeers::Parts meet_cpu_peers(const WorkerEnv& env, CpuCommunicatorOptions options) {
  check_world(env.rank, env.world_size);
  options.encrypt |= env.encrypt_gradients;
  if (env.world_size == 1) return lone_rank();
  check_group(env, options.common);
  // Before it waits for anybody: rank 0, which fails for the same reason, may be gone by then.
  if (options.encrypt) {
    if (!options.key) options.key = job_key();
    need_key_to_encrypt(env.rank, options.key.get());
  }
  const WorkerEnv met = meet_workers(env, options.common);
  const auto exchange = make_store_exchange(met, options.common);
  return connect_cpu_peers(env.rank, env.world_size, epoch_of(env), *exchange, options);
}

}  // namespace ddprun::worker
