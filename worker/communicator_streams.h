// Frames to and from all peers over their data connections, without ever blocking.
//
// The caller posts what it will send and what it expects, in the same order on both sides of a
// connection, then calls progress() until what it needs has happened. Nothing is read that was not
// posted, so a fast peer waits in the kernel's buffers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "worker/communicator_frame.h"
#include "worker/communicator_mesh.h"

namespace ddprun::worker {

// What progress() found wrong on one connection.
struct StreamFault {
  int peer = -1;
  bool lost = false;  // The connection ended; otherwise the peer sent something unexpected.
  std::string reason;
};

class PeerStreams {
 public:
  // Element r of `connections` leads to rank r; empty for `rank` itself.
  PeerStreams(int rank, std::uint32_t epoch, std::vector<UniqueFd> connections);

  // `data` must stay in place, a sent one unchanged, until it is done.
  void post_send(int peer, const Call& call, std::uint32_t part, const void* data,
                 std::size_t bytes);
  // Returns a ticket for received(): 1, 2, ... per peer.
  std::uint64_t post_receive(int peer, const Call& call, std::uint32_t part, void* data,
                             std::size_t bytes);
  bool received(int peer, std::uint64_t ticket) const { return at(peer).completed >= ticket; }

  enum class Progress { Moved, Blocked, Failed };
  // Moves what can be moved now. Failed: see fault().
  Progress progress();
  const StreamFault& fault() const { return fault_; }

  // Sleeps until a connection with posted work is ready, interrupt() was called, or `deadline`.
  void sleep_until(std::chrono::steady_clock::time_point deadline);
  void interrupt() noexcept;  // From any thread: ends this sleep or the next one.

  bool idle() const { return pending_ == 0; }
  bool idle(int peer) const { return at(peer).incoming.empty() && at(peer).outgoing.empty(); }
  std::uint64_t stale_frames() const { return stale_frames_; }  // Dropped so far.

 private:
  struct Outgoing {
    FrameHeader header;
    const unsigned char* data;
    std::size_t sent;  // Of header and payload together.
  };
  struct Incoming {
    FrameHeader expected;
    unsigned char* data;
  };
  struct Peer {
    UniqueFd connection;
    std::deque<Outgoing> outgoing;
    std::deque<Incoming> incoming;
    FrameHeader header;            // The frame now being received ...
    std::size_t received = 0;      // ... and how much of it is here, header included.
    std::uint64_t drop_bytes = 0;  // Left of a stale frame's payload.
    std::uint64_t posted = 0;      // Receives, ever.
    std::uint64_t completed = 0;
  };

  const Peer& at(int peer) const { return peers_[static_cast<std::size_t>(peer)]; }
  bool send_some(int peer);     // True: something moved.
  bool receive_some(int peer);  // True: something moved.
  bool receive_header(int peer);
  std::ptrdiff_t read(int peer, void* to, std::size_t bytes);  // Bytes read; 0: none now or failed.
  void lose(int peer, int error);

  int rank_;
  std::uint32_t epoch_;
  std::vector<Peer> peers_;
  std::size_t pending_ = 0;  // Frames posted and not done, over all peers.
  std::uint64_t stale_frames_ = 0;
  StreamFault fault_;
  UniqueFd interrupt_;  // An eventfd.
};

}  // namespace ddprun::worker
