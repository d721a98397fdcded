// A dead process's descriptors are in /proc until its memory is freed, and are taken away all at
// once.
#include "launcher/processes/leavings.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include "launcher/processes/child_sessions.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {
namespace {

using Inodes = std::set<std::uint32_t>;

// Asks for all of one kind; nothing = the kernel does not tell.
std::optional<Inodes> sockets_with_ports(int family, int protocol) {
  const rendezvous::UniqueFd link(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  struct {
    nlmsghdr header;
    inet_diag_req_v2 request;
  } message{};
  message.header.nlmsg_len = sizeof message;
  message.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  message.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  message.request.sdiag_family = static_cast<std::uint8_t>(family);
  message.request.sdiag_protocol = static_cast<std::uint8_t>(protocol);
  // A connection's port is the listener's, or the kernel's own choice.
  message.request.idiag_states = protocol == IPPROTO_TCP ? 1u << TCP_LISTEN : ~0u;
  if (!link || ::send(link.get(), &message, sizeof message, 0) != sizeof message) return {};
  Inodes found;
  alignas(nlmsghdr) std::array<char, 32768> buffer;
  for (;;) {
    const ssize_t count = ::recv(link.get(), buffer.data(), buffer.size(), 0);
    if (count <= 0) return std::nullopt;
    auto left = static_cast<unsigned>(count);
    for (auto* one = reinterpret_cast<nlmsghdr*>(buffer.data()); NLMSG_OK(one, left);
         one = NLMSG_NEXT(one, left)) {
      if (one->nlmsg_type == NLMSG_DONE) return found;
      if (one->nlmsg_type == NLMSG_ERROR) return std::nullopt;
      if (one->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg))) return std::nullopt;
      found.insert(static_cast<inet_diag_msg*>(NLMSG_DATA(one))->idiag_inode);
    }
  }
}

bool any_holds_a_port(const Inodes& sockets) {
  if (sockets.empty()) return false;
  for (const int protocol : {IPPROTO_TCP, IPPROTO_UDP}) {
    for (const int family : {AF_INET, AF_INET6}) {
      const auto with_ports = sockets_with_ports(family, protocol);
      if (!with_ports) return true;
      for (const std::uint32_t inode : *with_ports) {
        if (sockets.contains(inode)) return true;
      }
    }
  }
  return false;
}

// Of what an open descriptor's link says.
bool may_be_a_device(std::string_view path) {
  if (path.starts_with("/dmabuf:")) return true;
  if (!path.starts_with("/dev/")) return false;
  path.remove_prefix(5);
  for (const std::string_view harmless : {"null", "zero", "full", "random", "urandom", "tty"}) {
    if (path == harmless) return false;
  }
  return !path.starts_with("pts/") && !path.starts_with("shm/") && !path.starts_with("hugepages/");
}

std::optional<std::uint32_t> socket_inode(std::string_view path) {
  constexpr std::string_view begin = "socket:[";
  if (!path.starts_with(begin)) return std::nullopt;
  path.remove_prefix(begin.size());
  std::uint32_t inode = 0;
  std::from_chars(path.data(), path.data() + path.size(), inode);
  return inode;
}

// As /proc/PID/fdinfo/FD tells it of locks of any kind.
bool is_locked(const std::filesystem::path& info) {
  std::ifstream file(info);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("lock:")) return true;
  }
  return false;
}

// A process with more open files is waited for: the launcher has others to listen to meanwhile.
constexpr int looked_at_max = 1'000;

// Of one of the threads, which share its files: whether none of them is in the way. Nothing: it has
// none any more.
std::optional<bool> has_only_harmless_files(const std::filesystem::path& thread) {
  const auto files = thread / "fd";
  Inodes sockets;
  int seen = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(files, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = std::filesystem::read_symlink(entry->path(), error).native();
    if (error) break;
    if (++seen > looked_at_max || may_be_a_device(path)) return false;
    if (path.starts_with("/") && is_locked(thread / "fdinfo" / entry->path().filename())) {
      return false;
    }
    if (const auto inode = socket_inode(path)) sockets.insert(*inode);
  }
  if (seen > 0 && any_holds_a_port(sockets)) return false;
  // They are taken away all at once, and closed after that: if there are any still, all were seen.
  // Who speaks with a launcher has some.
  const std::filesystem::directory_iterator left(files, error), none;
  if (error || left == none) return std::nullopt;
  return true;
}

}  // namespace

// The thread that is the last to end frees the memory, and its files are there until then; the main
// thread may have none by now.
bool leaves_only_memory(int pid) {
  const auto children = read_children(pid);
  if (!is_exiting(pid) || !children || !children->empty()) return false;
  const std::filesystem::path threads = "/proc/" + std::to_string(pid) + "/task";
  std::error_code error;
  for (std::filesystem::directory_iterator thread(threads, error), end; !error && thread != end;
       thread.increment(error)) {
    if (const auto harmless = has_only_harmless_files(thread->path())) return *harmless;
  }
  return false;
}

}  // namespace ddprun::launcher
