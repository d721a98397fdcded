// Records between a socket and two buffers, one of each direction: a thread may send while another
// receives.
#include "worker/peers/peer_link.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <exception>
#include <vector>

namespace ddprun::worker {
namespace {

using rendezvous::record_bytes_max;
using rendezvous::record_head_bytes;

ssize_t send_plain(int fd, iovec* parts, std::size_t count) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  return ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

struct PeerLink::Sealed {
  Sealed(rendezvous::RecordSealer seals, rendezvous::RecordOpener opens)
      : sealer(std::move(seals)), opener(std::move(opens)) {}

  bool seal(iovec* parts, std::size_t count);  // False: errno says why.
  ssize_t flush(int fd);                       // Bytes sent, or -1 and errno.
  bool is_flushed() const { return gone == length; }
  ssize_t receive_record(int fd);             // 1: there is a whole one. Else as recv().
  ssize_t open(void* to, std::size_t bytes);  // Of the whole one.
  std::size_t take(void* to, std::size_t bytes);

  rendezvous::RecordSealer sealer;
  std::vector<unsigned char> outgoing;  // The record under way ...
  std::size_t length = 0;               // ... how long it is ...
  std::size_t gone = 0;                 // ... how much of it has gone ...
  std::size_t holds = 0;                // ... and of how many bytes of the caller's it was made.

  rendezvous::RecordOpener opener;
  std::vector<unsigned char> incoming;
  std::size_t came = 0;    // Of the record that comes, and of the head of the next one.
  std::size_t opened = 0;  // Bytes of it that are opened ...
  std::size_t taken = 0;   // ... and how many of these are given out.
  bool broken = false;
};

// Nothing is thrown: the watch says goodbye where an exception is on its way.
bool PeerLink::Sealed::seal(iovec* parts, std::size_t count) try {
  std::array<rendezvous::RecordSealer::Part, 2> some;
  assert(count <= some.size());
  holds = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t bytes = std::min(parts[i].iov_len, record_bytes_max - holds);
    some[i] = {static_cast<const unsigned char*>(parts[i].iov_base), bytes};
    holds += bytes;
  }
  const std::size_t wanted = rendezvous::record_size(holds);
  if (outgoing.size() < wanted) outgoing.resize(wanted);
  sealer.seal(std::span(some.data(), count), outgoing.data());
  length = wanted;
  gone = 0;
  return true;
} catch (const std::exception&) {
  errno = ENOMEM;
  return false;
}

ssize_t PeerLink::Sealed::flush(int fd) {
  const ssize_t sent =
      ::send(fd, outgoing.data() + gone, length - gone, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) gone += static_cast<std::size_t>(sent);
  return sent;
}

// Together with a record the head of the next one is asked for, so that a stream of records costs
// one system call each.
ssize_t PeerLink::Sealed::receive_record(int fd) {
  for (;;) {
    std::size_t wanted = record_head_bytes;
    if (came >= record_head_bytes) {
      const std::size_t holds_now = rendezvous::record_content_size(incoming.data());
      broken = broken || holds_now == 0;
      if (broken) {
        errno = EBADMSG;
        return -1;
      }
      if (came >= rendezvous::record_size(holds_now)) return 1;
      wanted += rendezvous::record_size(holds_now);
    }
    if (incoming.size() < wanted) incoming.resize(wanted);
    const ssize_t got = ::recv(fd, incoming.data() + came, wanted - came, MSG_DONTWAIT);
    if (got <= 0) return got;
    came += static_cast<std::size_t>(got);
  }
}

std::size_t PeerLink::Sealed::take(void* to, std::size_t bytes) {
  const std::size_t some = std::min(bytes, opened - taken);
  std::memcpy(to, incoming.data() + record_head_bytes + taken, some);
  taken += some;
  return some;
}

// A record that is wanted whole is opened where it is wanted, without a copy; whoever asked for it
// learns from the result that it must not use what lies there.
ssize_t PeerLink::Sealed::open(void* to, std::size_t bytes) {
  const std::size_t size = rendezvous::record_content_size(incoming.data());
  const bool whole = bytes >= size;
  unsigned char* content =
      whole ? static_cast<unsigned char*>(to) : incoming.data() + record_head_bytes;
  try {
    broken = !opener.open(incoming.data(), content);
  } catch (const rendezvous::SecurityError&) {  // The next key could not be derived.
    broken = true;
  }
  if (broken) {
    errno = EBADMSG;
    return -1;
  }
  opened = size;
  taken = whole ? size : 0;
  return static_cast<ssize_t>(whole ? size : take(to, bytes));
}

PeerLink::PeerLink() = default;
PeerLink::PeerLink(UniqueFd socket) : socket_(std::move(socket)) {}
PeerLink::PeerLink(UniqueFd socket, rendezvous::RecordSealer sealer,
                   rendezvous::RecordOpener opener)
    : socket_(std::move(socket)),
      sealed_(std::make_unique<Sealed>(std::move(sealer), std::move(opener))) {}
PeerLink::PeerLink(PeerLink&& other) noexcept = default;
PeerLink& PeerLink::operator=(PeerLink&& other) noexcept = default;
PeerLink::~PeerLink() = default;

ssize_t PeerLink::send(iovec* parts, std::size_t count) {
  if (!sealed_) return send_plain(get(), parts, count);
  if (sealed_->is_flushed() && !sealed_->seal(parts, count)) return -1;
  if (sealed_->flush(get()) < 0) return -1;
  return sealed_->is_flushed() ? static_cast<ssize_t>(sealed_->holds) : 0;
}

int PeerLink::send_message(iovec* parts, std::size_t count) {
  if (!sealed_) return send_plain(get(), parts, count) < 0 ? -1 : 0;
  while (!sealed_->is_flushed()) {
    if (sealed_->flush(get()) < 0) return -1;
  }
  if (!sealed_->seal(parts, count)) return -1;
  return sealed_->flush(get()) < 0 && errno != EAGAIN ? -1 : 0;
}

ssize_t PeerLink::receive(void* to, std::size_t bytes) {
  if (!sealed_) return ::recv(get(), to, bytes, MSG_DONTWAIT);
  Sealed& in = *sealed_;
  if (bytes == 0) return 0;
  if (in.opened == 0) {
    const ssize_t there = in.receive_record(get());
    if (there <= 0) return there;
  }
  const ssize_t got =
      in.opened == 0 ? in.open(to, bytes) : static_cast<ssize_t>(in.take(to, bytes));
  if (got > 0 && in.taken == in.opened) {
    const std::size_t whole = rendezvous::record_size(in.opened);
    std::memmove(in.incoming.data(), in.incoming.data() + whole, in.came - whole);
    in.came -= whole;
    in.opened = 0;
  }
  return got;
}

bool PeerLink::has_opened() const { return sealed_ && sealed_->opened > 0; }

}  // namespace ddprun::worker
