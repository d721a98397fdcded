// One connection between two ranks, as it is used once both have said who they are: plain, or with
// all that goes over it sealed (rendezvous/sealed_records.h).
//
// It looks like a socket that does not block, so that whoever moves frames over it need not know
// which of the two it is. A plain one costs one test of a pointer more than its socket.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>

#include "rendezvous/sealed_records.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::worker {

using rendezvous::UniqueFd;

class PeerLink {
 public:
  PeerLink();
  PeerLink(UniqueFd socket);  // Plain.
  PeerLink(UniqueFd socket, rendezvous::RecordSealer sealer, rendezvous::RecordOpener opener);
  PeerLink(PeerLink&& other) noexcept;
  PeerLink& operator=(PeerLink&& other) noexcept;
  ~PeerLink();

  explicit operator bool() const { return static_cast<bool>(socket_); }
  int get() const { return socket_.get(); }  // To wait for, and for what the kernel knows.

  // As sendmsg(): how many bytes have gone, or -1 and errno. A sealed record counts once the last
  // of it has gone, until then 0 is returned: the caller must come again with the same bytes.
  ssize_t send(iovec* parts, std::size_t count);
  // The same for a message that is whole: what a buffer does not take at once goes before the next
  // one. 0, or -1 and errno; EAGAIN: it was not taken.
  int send_message(iovec* parts, std::size_t count);

  // As recv(). errno is EBADMSG when something came that the other side has not sealed, or not as
  // the next record; nothing of it is given out, nor of what follows.
  ssize_t receive(void* to, std::size_t bytes);
  // Whether receive() has something that poll() does not tell of.
  bool has_opened() const;

 private:
  struct Sealed;

  UniqueFd socket_;
  std::unique_ptr<Sealed> sealed_;
};

// What EBADMSG means here, for people.
inline constexpr const char* not_sealed_words =
    "it carries bytes that its rank did not seal so: they were changed, repeated, left out or put "
    "in another order on the way";

}  // namespace ddprun::worker
