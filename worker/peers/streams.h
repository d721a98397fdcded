// Frames to and from all peers over their data connections, without ever blocking.
//
// The caller posts what it will send and what it expects, then calls progress() until what it needs
// has happened. Collectives and messages are two kinds of traffic: within one, both sides of a
// connection post in the same order; a frame of the other kind may come in between. Nothing is read
// that was not posted, so a fast peer waits in the kernel's buffers; but where a collective is
// expected of a peer, messages that lie before it are kept until they are posted, up to
// kept_bytes_max.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/peers/frame.h"
#include "worker/peers/mesh.h"

namespace ddprun::worker {

// What progress() found wrong on one connection.
struct StreamFault {
  int peer = -1;
  bool lost = false;  // The connection ended; otherwise the peer sent something unexpected.
  bool unacknowledged = false;  // It ended as the kernel got no acknowledgement for too long.
  std::string reason;
};

enum class Traffic : std::uint8_t { Collectives, Messages };

inline Traffic traffic_of(const Call& call) {
  return call.kind == CallKind::Message ? Traffic::Messages : Traffic::Collectives;
}

class PeerStreams {
 public:
  // Element r of `connections` leads to rank r; empty for `rank` itself.
  PeerStreams(int rank, Epoch epoch, std::vector<PeerLink> connections);

  // `data` must stay in place, a sent one unchanged, until it is done. Returns a ticket for sent():
  // 1, 2, ... per peer.
  std::uint64_t post_send(int peer, const Call& call, std::uint32_t part, const void* data,
                          std::size_t bytes);
  bool sent(int peer, std::uint64_t ticket) const { return at(peer).sent >= ticket; }
  // Returns a ticket for received(): 1, 2, ... per peer and kind of traffic.
  std::uint64_t post_receive(int peer, const Call& call, std::uint32_t part, void* data,
                             std::size_t bytes);
  bool received(int peer, std::uint64_t ticket, Traffic traffic = Traffic::Collectives) const {
    return at(peer).receiving[index(traffic)].completed >= ticket;
  }

  enum class Progress { Moved, Blocked, Failed };
  // Moves what can be moved now. Failed: see fault().
  Progress progress();
  const StreamFault& fault() const { return fault_; }

  // Sleeps until a connection with posted work is ready, interrupt() was called, or `deadline`.
  void sleep_until(std::chrono::steady_clock::time_point deadline);
  void interrupt() noexcept;  // From any thread: ends this sleep or the next one.

  bool idle() const { return pending_[0] + pending_[1] == 0; }
  bool idle(Traffic traffic) const { return pending_[index(traffic)] == 0; }
  bool idle(int peer, Traffic traffic) const { return at(peer).pending[index(traffic)] == 0; }
  // The call of a frame that has come and was not posted, while something else was, and that is not
  // kept; it stays at the head of the connection until it is posted.
  std::optional<Call> held(int peer) const;
  // The call of the first message that is kept, as nobody has posted its receive.
  std::optional<Call> kept(int peer) const;
  std::uint64_t stale_frames() const { return stale_frames_; }  // Dropped so far.
  // Whether the kernel sends the same bytes to `peer` again and again, since its host does not
  // acknowledge them. A process that does not read is another matter: its host does.
  bool unacknowledged(int peer) const;

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
  struct Kept {
    FrameHeader header;
    std::unique_ptr<unsigned char[]> data;
  };
  struct Receiving {  // One kind of traffic.
    std::deque<Incoming> expected;
    std::uint64_t posted = 0;  // Ever.
    std::uint64_t completed = 0;
  };
  struct Peer {
    PeerLink connection;
    std::deque<Outgoing> outgoing;
    Receiving receiving[2];
    FrameHeader header;        // The frame now being received ...
    std::size_t received = 0;  // ... how much of it is here, header included ...
    bool checked = false;      // ... whether it is what is expected ...
    bool keeps = false;        // ... or a message to keep: then it is the last of these.
    std::deque<Kept> kept;
    std::size_t kept_bytes = 0;
    std::uint64_t drop_bytes = 0;  // Left of a stale frame's payload.
    std::uint64_t posted = 0;      // Sends, ever.
    std::uint64_t sent = 0;
    std::size_t pending[2] = {};  // Frames posted and not done.

    bool expects_nothing() const {
      return receiving[0].expected.empty() && receiving[1].expected.empty();
    }
  };

  static std::size_t index(Traffic traffic) { return static_cast<std::size_t>(traffic); }
  const Peer& at(int peer) const { return peers_[static_cast<std::size_t>(peer)]; }
  void begin(Peer& peer, Traffic traffic);
  void finish(Peer& peer, Traffic traffic);
  bool send_some(int peer);     // True: something moved.
  bool receive_some(int peer);  // True: something moved.
  bool receive_header(int peer);
  bool check_header(int peer);
  bool keep(Peer& peer);
  bool take_kept(int peer);  // True: a posted receive is done.
  bool refused(int peer, const FrameDecision& decision);
  void complete(Peer& peer, Traffic traffic);
  std::ptrdiff_t read(int peer, void* to, std::size_t bytes);  // Bytes read; 0: none now or failed.
  void lose(int peer, int error);

  int rank_;
  Epoch epoch_;
  std::vector<Peer> peers_;
  std::size_t pending_[2] = {};  // Frames posted and not done, over all peers.
  std::uint64_t stale_frames_ = 0;
  StreamFault fault_;
  UniqueFd interrupt_;  // An eventfd.
};

}  // namespace ddprun::worker
