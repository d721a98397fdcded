// Connects every rank with every other, twice: one connection for data, one for the watch (see
// watch.h). Where data goes another way, as NCCL's does, for the watch alone. Rank r calls all
// lower ranks and is called by all higher ones.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/long_wait.h"
#include "rendezvous/unique_fd.h"
#include "worker/communicator.h"
#include "worker/peers/mesh_greeting.h"
#include "worker/peers/shared_memory.h"

namespace ddprun::worker {

// What a rank publishes about itself.
struct PeerAddress {
  std::string host = "-";  // Ranks share memory only if these are equal; for tests.
  std::string ip;          // Where it listens.
  std::uint16_t port = 0;
  std::string secret;      // What a caller must show or prove to know, for the store has it.
  SegmentAddress segment;  // Its shared memory; fd -1: none.
  bool encrypts = false;   // Told only for the words: the greeting is what checks it.
  int world_size = 0;      // Of the communicator.
  std::string group;       // "": all ranks of the job.
};

std::string to_text(const PeerAddress& address);
PeerAddress parse_peer_address(const std::string& text, int rank);  // Throws CommunicatorError.

// The addresses of all ranks, of which `rank` is this one. Throws CommunicatorError also where one
// is of another world size or group.
std::vector<PeerAddress> parse_peer_addresses(const std::vector<std::string>& texts, int rank);

// After so long without a sign of the other host its connection to the watch ends. As long as the
// launcher's heartbeat timeout, so that workers notice a lost host when their agents do.
inline constexpr std::chrono::seconds peer_silence_max{5};

struct PeerSockets {
  PeerLink data;   // Non-blocking, TCP_NODELAY. Empty with Mesh::For::Watch.
  PeerLink watch;  // The same, with keep-alive, so that a silent host is noticed.
};

// The key that this process proves and asks its peers for; null where its launcher gave it none.
// Throws CommunicatorError.
std::shared_ptr<const WorkerKey> job_key();

// Gradients can be encrypted with a key alone. Throws CommunicatorError that says where to get one.
void need_key_to_encrypt(int rank, const WorkerKey* key);

class Mesh {
 public:
  enum class For { DataAndWatch, Watch };  // The same on all ranks.

  // Listens on a free port of `ip` (a numeric address). `encrypts`: all connections are sealed,
  // which takes a key. Throws CommunicatorError.
  Mesh(int rank, Epoch epoch, const std::string& ip,
       std::shared_ptr<const WorkerKey> key = job_key(), bool encrypts = false,
       For what_for = For::DataAndWatch);

  std::uint16_t port() const { return port_; }
  const std::string& secret() const { return secret_; }

  // Connects to all `peers` (index = rank) and stops listening. Throws CommunicatorError that
  // names the peer that could not be reached, did not call before `deadline`, or has another key;
  // or says that `interrupt_fd` became readable, where it is none of -1. A peer to which there is
  // no route is tried again for 5 s. `words`: for whom it waits, while it does.
  std::vector<PeerSockets> connect(const std::vector<PeerAddress>& peers,
                                   std::chrono::steady_clock::time_point deadline,
                                   int interrupt_fd = -1, rendezvous::WaitWords words = {});

 private:
  OutgoingGreeting call(int peer, const PeerAddress& address, MeshChannel channel,
                        std::chrono::steady_clock::time_point deadline);
  void greet_all(std::vector<OutgoingGreeting>& calls, std::vector<PeerSockets>& sockets,
                 const std::vector<PeerAddress>& peers,
                 std::chrono::steady_clock::time_point deadline);
  bool finish(OutgoingGreeting& call, std::vector<PeerSockets>& sockets,
              const std::vector<PeerAddress>& peers) const;
  void take(IncomingGreeting& caller, std::vector<PeerSockets>& sockets) const;
  bool connects_data() const { return what_for_ == For::DataAndWatch; }
  std::string missing(const std::vector<PeerSockets>& sockets) const;
  [[noreturn]] void end_interrupted() const;

  int rank_;
  Epoch epoch_;
  std::string secret_;
  std::shared_ptr<const WorkerKey> key_;
  bool encrypts_;
  For what_for_;
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  int interrupt_fd_ = -1;  // While connecting.
  rendezvous::LongWait wait_{{}, {}};
  std::string turned_away_;  // The last rank of another attempt that has called.
};

}  // namespace ddprun::worker
