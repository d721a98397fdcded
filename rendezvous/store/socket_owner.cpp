// One exact question to the kernel's socket diagnosis, as ss(8) asks it for all sockets.
#include "rendezvous/store/socket_owner.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace ddprun::rendezvous {
namespace {

// One end of a connection; IPv4 is kept as such also on a socket that serves both.
struct End {
  bool v4 = true;
  std::array<std::uint8_t, 16> address{};
  std::uint16_t port_be = 0;

  bool same_address(const End& other) const { return v4 == other.v4 && address == other.address; }
  bool is_loopback() const {
    if (v4) return address[0] == 127;
    const in6_addr loopback = IN6ADDR_LOOPBACK_INIT;
    return std::memcmp(address.data(), &loopback, sizeof loopback) == 0;
  }
};

End end_of(const sockaddr_storage& storage) {
  End end;
  if (storage.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage);
    std::memcpy(end.address.data(), &v4->sin_addr, 4);
    end.port_be = v4->sin_port;
    return end;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage);
  end.port_be = v6->sin6_port;
  if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
    std::memcpy(end.address.data(), v6->sin6_addr.s6_addr + 12, 4);
  } else {
    end.v4 = false;
    std::memcpy(end.address.data(), &v6->sin6_addr, 16);
  }
  return end;
}

using NameOf = int(int fd, sockaddr* name, socklen_t* size);  // getsockname(), getpeername()

std::optional<End> end_of(int fd, NameOf name_of) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (name_of(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return std::nullopt;
  return end_of(storage);
}

std::optional<End> near_end(int fd) { return end_of(fd, ::getsockname); }
std::optional<End> far_end(int fd) { return end_of(fd, ::getpeername); }

struct Answer {
  int error = 0;
  std::optional<uid_t> owner;
};

// The socket that is bound to `own` and connected to `other`.
Answer ask(int netlink, const End& own, const End& other) {
  struct {
    nlmsghdr head{};
    inet_diag_req_v2 body{};
  } question;
  question.head.nlmsg_len = sizeof question;
  question.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.head.nlmsg_flags = NLM_F_REQUEST;
  question.body.sdiag_family = own.v4 ? AF_INET : AF_INET6;
  question.body.sdiag_protocol = IPPROTO_TCP;
  question.body.idiag_states = ~0u;
  question.body.id.idiag_sport = own.port_be;
  question.body.id.idiag_dport = other.port_be;
  std::memcpy(question.body.id.idiag_src, own.address.data(), own.address.size());
  std::memcpy(question.body.id.idiag_dst, other.address.data(), other.address.size());
  question.body.id.idiag_cookie[0] = question.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (::send(netlink, &question, sizeof question, 0) < 0) return {errno, {}};
  // The answer is there when send() returns: the kernel writes it in the caller's own time.
  alignas(nlmsghdr) std::array<char, 1'024> reply{};
  const ssize_t size = ::recv(netlink, reply.data(), reply.size(), MSG_DONTWAIT);
  if (size < static_cast<ssize_t>(sizeof(nlmsghdr))) return {size < 0 ? errno : EBADMSG, {}};
  nlmsghdr head{};
  std::memcpy(&head, reply.data(), sizeof head);
  const auto payload = static_cast<std::size_t>(size) - sizeof head;
  if (head.nlmsg_type == NLMSG_ERROR && payload >= sizeof(nlmsgerr)) {
    nlmsgerr error{};
    std::memcpy(&error, reply.data() + sizeof head, sizeof error);
    return {-error.error, {}};
  }
  if (head.nlmsg_type != SOCK_DIAG_BY_FAMILY || payload < sizeof(inet_diag_msg))
    return {EBADMSG, {}};
  inet_diag_msg found{};
  std::memcpy(&found, reply.data() + sizeof head, sizeof found);
  // Of a socket that no process holds any more the kernel says root. Somebody who sends and closes
  // at once must not become root by that.
  if (found.idiag_inode == 0) return {0, {}};
  return {0, found.idiag_uid};
}

}  // namespace

SocketOwner::SocketOwner(int listener)
    : netlink_(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)) {
  if (!netlink_.valid()) {
    unavailable_ = std::strerror(errno);
    return;
  }
  auto own = near_end(listener);
  if (!own) return;
  if (own->address == std::array<std::uint8_t, 16>{}) {  // Every interface: loopback is one.
    own->v4 = true;
    own->address = {127, 0, 0, 1};
  }
  End nobody;
  nobody.v4 = own->v4;
  const Answer answer = ask(netlink_.get(), *own, nobody);
  if (!answer.owner) unavailable_ = std::strerror(answer.error == 0 ? ENOENT : answer.error);
}

std::string SocketOwner::warning(const std::string& listening, const std::string& act) const {
  if (unavailable_.empty()) return "";
  return listening + ": the kernel does not say whose connections from this machine are (" +
         unavailable_ + "): its other users can " + act + ", too";
}

bool SocketOwner::is_local(int fd) {
  const auto own = near_end(fd);
  const auto other = far_end(fd);
  return own && other && (other->is_loopback() || other->same_address(*own));
}

std::optional<uid_t> SocketOwner::of_peer(int fd) const {
  const auto own = near_end(fd);
  const auto other = far_end(fd);
  if (!own || !other) return std::nullopt;
  return ask(netlink_.get(), *other, *own).owner;
}

bool is_own_user(uid_t owner) { return owner == ::geteuid() || owner == ::getuid() || owner == 0; }

}  // namespace ddprun::rendezvous
