// Non-blocking sending and receiving of frames.
#include "worker/peers/streams.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int tries_in_vain = 4;  // Each after twice the time: 3 s and more on a fast network.

}  // namespace

PeerStreams::PeerStreams(int rank, Epoch epoch, std::vector<PeerLink> connections)
    : rank_(rank), epoch_(epoch), interrupt_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!interrupt_) throw CommunicatorError(std::string("eventfd: ") + std::strerror(errno));
  for (PeerLink& connection : connections) {
    peers_.emplace_back().connection = std::move(connection);
  }
  assert(!at(rank).connection);
}

void PeerStreams::begin(Peer& peer, Traffic traffic) {
  ++peer.pending[index(traffic)];
  ++pending_[index(traffic)];
}

void PeerStreams::finish(Peer& peer, Traffic traffic) {
  assert(peer.pending[index(traffic)] > 0);
  --peer.pending[index(traffic)];
  --pending_[index(traffic)];
}

std::uint64_t PeerStreams::post_send(int peer, const Call& call, std::uint32_t part,
                                     const void* data, std::size_t bytes) {
  Outgoing out{{}, static_cast<const unsigned char*>(data), 0};
  out.header.epoch = epoch_;
  out.header.call = call;
  out.header.part = part;
  out.header.bytes = bytes;
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  assert(p.connection);  // Also within a host: only the collectives use its memory.
  p.outgoing.push_back(out);
  begin(p, traffic_of(call));
  return ++p.posted;
}

std::uint64_t PeerStreams::post_receive(int peer, const Call& call, std::uint32_t part, void* data,
                                        std::size_t bytes) {
  Incoming in{{}, static_cast<unsigned char*>(data)};
  in.expected.epoch = epoch_;
  in.expected.call = call;
  in.expected.part = part;
  in.expected.bytes = bytes;
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  assert(p.connection);
  begin(p, traffic_of(call));
  Receiving& receiving = p.receiving[index(traffic_of(call))];
  receiving.expected.push_back(in);
  return ++receiving.posted;
}

std::optional<Call> PeerStreams::held(int peer) const {
  const Peer& p = at(peer);
  const bool whole = p.received == sizeof(FrameHeader) && !p.checked;
  return whole && !p.expects_nothing() ? std::optional(p.header.call) : std::nullopt;
}

std::optional<Call> PeerStreams::kept(int peer) const {
  const std::deque<Kept>& kept = at(peer).kept;
  return kept.empty() ? std::nullopt : std::optional(kept.front().header.call);
}

PeerStreams::Progress PeerStreams::progress() {
  bool moved = false;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (!at(peer).outgoing.empty()) moved |= send_some(peer);
    if (fault_.peer < 0 && !at(peer).expects_nothing()) moved |= receive_some(peer);
    if (fault_.peer >= 0) return Progress::Failed;
  }
  return moved ? Progress::Moved : Progress::Blocked;
}

void PeerStreams::lose(int peer, int error) {
  // The connection is there, and what comes over it is not the peer's.
  if (error == EBADMSG) {
    fault_ = {peer, false, false,
              "the connection from rank " + std::to_string(peer) + ": " + not_sealed_words};
    return;
  }
  fault_ = {peer, true, error == ETIMEDOUT,
            error == 0 ? "it closed the connection"
                       : std::string("its connection failed: ") + std::strerror(error)};
}

bool PeerStreams::unacknowledged(int peer) const {
  tcp_info info{};
  socklen_t size = sizeof(info);
  const int fd = at(peer).connection.get();
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_unacked > 0 &&
         info.tcpi_retransmits >= tries_in_vain;
}

bool PeerStreams::send_some(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  Outgoing& out = p.outgoing.front();
  const std::size_t head = std::min(out.sent, sizeof(FrameHeader));
  const std::size_t body = out.sent - head;
  const std::size_t total = sizeof(FrameHeader) + out.header.bytes;
  // In one call: without Nagle's algorithm two of them are two segments.
  iovec parts[2] = {{reinterpret_cast<char*>(&out.header) + head, sizeof(FrameHeader) - head},
                    {const_cast<unsigned char*>(out.data) + body, out.header.bytes - body}};
  const bool one = head == sizeof(FrameHeader) || out.header.bytes == 0;
  const ssize_t sent =
      p.connection.send(head == sizeof(FrameHeader) ? parts + 1 : parts, one ? 1 : 2);
  if (sent < 0) {
    if (errno != EAGAIN && errno != EINTR) lose(peer, errno);
    return false;
  }
  out.sent += static_cast<std::size_t>(sent);
  if (out.sent == total) {
    finish(p, traffic_of(out.header.call));
    ++p.sent;
    p.outgoing.pop_front();
  }
  return true;
}

std::ptrdiff_t PeerStreams::read(int peer, void* to, std::size_t bytes) {
  const ssize_t got = peers_[static_cast<std::size_t>(peer)].connection.receive(to, bytes);
  if (got > 0) return got;
  if (got == 0) {
    lose(peer, 0);
  } else if (errno != EAGAIN && errno != EINTR) {
    lose(peer, errno);
  }
  return 0;
}

bool PeerStreams::receive_header(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  const auto got =
      read(peer, reinterpret_cast<char*>(&p.header) + p.received, sizeof(FrameHeader) - p.received);
  p.received += static_cast<std::size_t>(got);
  return got > 0;
}

// Once the header is whole: is it the next one of its kind? False: it cannot go on now.
bool PeerStreams::check_header(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  std::size_t kind = index(traffic_of(p.header.call));
  // Older attempts and strangers are told from any frame that is expected.
  const bool sound = p.header.magic == frame_magic && p.header.epoch == epoch_;
  if (p.receiving[kind].expected.empty()) {
    if (sound) return keep(p);  // Or it is held until it is posted.
    kind = 1 - kind;
  }
  const FrameDecision decision =
      check_frame(p.receiving[kind].expected.front().expected, p.header, rank_, peer);
  if (refused(peer, decision)) return false;
  if (decision.verdict == FrameVerdict::DropStale) {
    ++stale_frames_;
    p.drop_bytes = p.header.bytes;
    p.received = 0;
    return false;
  }
  p.checked = true;
  return true;
}

bool PeerStreams::refused(int peer, const FrameDecision& decision) {
  if (decision.verdict != FrameVerdict::Refuse) return false;
  fault_ = {peer, false, false, decision.reason};
  return true;
}

// A message that is not posted, while a collective is expected. False: there is no room for it.
bool PeerStreams::keep(Peer& peer) {
  if (traffic_of(peer.header.call) != Traffic::Messages) return false;
  const std::size_t room = kept_bytes_max - peer.kept_bytes;
  if (room < sizeof(FrameHeader) || peer.header.bytes > room - sizeof(FrameHeader)) return false;
  peer.kept.push_back(
      {peer.header, std::make_unique_for_overwrite<unsigned char[]>(peer.header.bytes)});
  peer.kept_bytes += sizeof(FrameHeader) + peer.header.bytes;
  peer.checked = peer.keeps = true;
  return true;
}

bool PeerStreams::take_kept(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  const std::deque<Incoming>& expected = p.receiving[index(Traffic::Messages)].expected;
  const std::size_t whole = p.kept.size() - (p.keeps ? 1 : 0);
  if (whole == 0 || expected.empty()) return false;
  const Kept& kept = p.kept.front();
  const Incoming& in = expected.front();
  if (refused(peer, check_frame(in.expected, kept.header, rank_, peer))) return false;
  if (kept.header.bytes > 0) std::memcpy(in.data, kept.data.get(), kept.header.bytes);
  p.kept_bytes -= sizeof(FrameHeader) + kept.header.bytes;
  p.kept.pop_front();
  complete(p, Traffic::Messages);
  return true;
}

void PeerStreams::complete(Peer& peer, Traffic traffic) {
  finish(peer, traffic);
  Receiving& receiving = peer.receiving[index(traffic)];
  receiving.expected.pop_front();
  ++receiving.completed;
}

bool PeerStreams::receive_some(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  if (take_kept(peer)) return true;
  if (fault_.peer >= 0) return false;
  if (p.drop_bytes > 0) {
    char dropped[16'384];
    const auto got = read(peer, dropped, std::min<std::uint64_t>(p.drop_bytes, sizeof(dropped)));
    p.drop_bytes -= static_cast<std::uint64_t>(got);
    return got > 0;
  }
  bool moved = false;
  if (p.received < sizeof(FrameHeader)) moved = receive_header(peer);
  if (fault_.peer >= 0 || p.received < sizeof(FrameHeader)) return moved;
  if (!p.checked && !check_header(peer)) return moved;
  const Traffic traffic = traffic_of(p.header.call);
  unsigned char* const to =
      p.keeps ? p.kept.back().data.get() : p.receiving[index(traffic)].expected.front().data;
  const std::size_t body = p.received - sizeof(FrameHeader);
  if (body < p.header.bytes) {
    const auto got = read(peer, to + body, p.header.bytes - body);
    p.received += static_cast<std::size_t>(got);
    moved |= got > 0;
  }
  if (p.received == sizeof(FrameHeader) + p.header.bytes) {
    if (!p.keeps) complete(p, traffic);
    p.received = 0;
    p.checked = p.keeps = false;
    moved = true;
  }
  return moved;
}

void PeerStreams::sleep_until(Clock::time_point deadline) {
  std::vector<pollfd> polled{{interrupt_.get(), POLLIN, 0}};
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    const Peer& p = at(peer);
    const bool receives = !p.expects_nothing() && !held(peer);
    const int events = (p.outgoing.empty() ? 0 : POLLOUT) | (receives ? POLLIN : 0);
    if (events != 0) polled.push_back({p.connection.get(), static_cast<short>(events), 0});
  }
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now());
  if (left.count() <= 0) return;
  const timespec timeout{left.count() / 1'000'000'000, left.count() % 1'000'000'000};
  ::ppoll(polled.data(), polled.size(), &timeout, nullptr);
  std::uint64_t count = 0;
  if (polled[0].revents != 0) {
    [[maybe_unused]] const auto got = ::read(interrupt_.get(), &count, sizeof(count));
  }
}

void PeerStreams::interrupt() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(interrupt_.get(), &one, sizeof(one));
}

}  // namespace ddprun::worker
