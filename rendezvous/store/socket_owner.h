// Whose is the other end of a connection that both ends of which are on this machine.
//
// An address of this machine is every local user's. The kernel knows who opened a socket, and tells
// it to whoever asks by the two addresses and ports (sock_diag(7)): one request of some
// microseconds, no privilege needed. /proc/net/tcp says the same, but is a list of all sockets of
// the machine, to be read for each connection.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "rendezvous/unique_fd.h"

namespace ddprun::rendezvous {

class SocketOwner {
 public:
  // Asks for the owner of `listener` as a trial.
  explicit SocketOwner(int listener);

  // Why the kernel does not tell here (a container's filter of system calls, a kernel without
  // inet_diag); "" when it does.
  const std::string& unavailable() const { return unavailable_; }

  // That for a person: "`listening`: the kernel does not say ...: its other users can `act`, too".
  // Who is not told whose connections are lets all users in, or a job in a container without this
  // would never start.
  std::string warning(const std::string& listening, const std::string& act) const;

  // True when both ends of the TCP connection `fd` have an address of this machine.
  static bool is_local(int fd);

  // The user whose process holds the other end. Nothing: nobody does any more, or it is not of this
  // machine although its address is (a translated one).
  std::optional<uid_t> of_peer(int fd) const;

 private:
  UniqueFd netlink_;
  std::string unavailable_;
};

// Whether this process may trust a process of `owner`: its own user, or root.
bool is_own_user(uid_t owner);

}  // namespace ddprun::rendezvous
