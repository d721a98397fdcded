// Asks the kernel: for its list of addresses, a way to loopback, and its tables in /proc.
#include "launcher/machine/local_addresses.h"

#include <fmt/format.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/ip/address.hpp>
#include <asio/ip/udp.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>

#include "rendezvous/host/interface_addresses.h"

namespace ddprun::launcher {
namespace {

// Inodes of the sockets that listen on `port`, from /proc/net/tcp and tcp6 (proc(5)).
std::set<std::string> listening_inodes(int port) {
  std::set<std::string> inodes;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);  // The heading.
    while (std::getline(file, line)) {
      std::istringstream row(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      row >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >>
          inode;
      const std::size_t colon = local.rfind(':');
      if (colon == std::string::npos || state != "0A") continue;
      if (local.substr(colon + 1) == fmt::format("{:04X}", port)) inodes.insert(inode);
    }
  }
  return inodes;
}

// Whether a process holds one of these sockets. It may end meanwhile, and then its folder throws at
// the ++ of a range-for.
bool holds_one_of(const std::filesystem::path& descriptors, const std::set<std::string>& inodes) {
  namespace fs = std::filesystem;
  std::error_code gone;
  for (fs::directory_iterator fd(descriptors, gone), end; !gone && fd != end; fd.increment(gone)) {
    std::error_code closed;
    const std::string target = fs::read_symlink(fd->path(), closed).string();
    if (target.rfind("socket:[", 0) != 0) continue;
    if (inodes.count(target.substr(8, target.size() - 9)) != 0) return true;
  }
  return false;
}

// A link-local one comes with its interface from the list, and without it from people.
asio::ip::address without_scope(const asio::ip::address& address) {
  return address.is_v6() ? asio::ip::address_v6(address.to_v6().to_bytes()) : address;
}

}  // namespace

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  for (const rendezvous::InterfaceAddress& one : rendezvous::interface_addresses()) {
    if (!one.address.empty()) addresses.push_back(one.address);
  }
  return addresses;
}

bool is_local_address(const std::string& address) {
  asio::error_code error;
  const auto parsed = asio::ip::make_address(address, error);
  if (error) return false;
  if (parsed.is_loopback()) return true;  // All of 127.0.0.0/8, of which interfaces list one.
  const std::vector<std::string> own = own_addresses();
  return std::any_of(own.begin(), own.end(), [&](const std::string& text) {
    asio::error_code unreadable;
    return without_scope(asio::ip::make_address(text, unreadable)) == without_scope(parsed) &&
           !unreadable;
  });
}

std::string loopback_problem() {
  // Connecting a datagram socket sends nothing: the kernel looks up the way, as for a connection.
  asio::error_code error;
  asio::io_context io;
  asio::ip::udp::socket socket(io);
  socket.open(asio::ip::udp::v4(), error);
  if (!error) socket.connect({asio::ip::address_v4::loopback(), 9}, error);
  if (!error) return "";
  const std::string problem =
      fmt::format("this host cannot reach itself at 127.0.0.1 ({})", error.message());
  ifreq loopback{};
  std::strncpy(loopback.ifr_name, "lo", IFNAMSIZ - 1);
  const bool known = ::ioctl(socket.native_handle(), SIOCGIFFLAGS, &loopback) == 0;
  if (known && (loopback.ifr_flags & IFF_UP) == 0) {
    return problem +
           ": the loopback interface is down, as it is in a new network namespace; start it there "
           "with `ip link set lo up`";
  }
  return problem + "; `ip address show lo` says what the loopback interface has";
}

std::string port_holder(int port) {
  namespace fs = std::filesystem;
  const std::set<std::string> inodes = listening_inodes(port);
  if (inodes.empty()) return "";
  std::error_code ignored;
  for (fs::directory_iterator process("/proc", ignored), end; !ignored && process != end;
       process.increment(ignored)) {
    const std::string pid = process->path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    if (!holds_one_of(process->path() / "fd", inodes)) continue;
    std::string name;
    std::ifstream comm(process->path() / "comm");
    std::getline(comm, name);
    return fmt::format("pid {} ({})", pid, name);
  }
  return "";
}

}  // namespace ddprun::launcher
