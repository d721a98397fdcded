// Where the endpoint is, as far as names and addresses tell; who wins the port, bind() decides.
#include "launcher/endpoint.h"

#include <dirent.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/io_context.hpp>
#include <asio/ip/udp.hpp>
#include <climits>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "rendezvous/control/resolve.h"

namespace ddprun::launcher {
namespace {

constexpr const char* loopback = "127.0.0.1";

bool is_loopback(const std::string& address) {
  asio::error_code error;
  const auto parsed = asio::ip::make_address(address, error);
  return !error && parsed.is_loopback();
}

// The one address to listen on so that all nodes can connect, or "" for all interfaces.
std::string listening_address(const std::string& host, const EndpointFacts& facts) {
  if (host == "localhost") return loopback;
  if (rendezvous::is_address(host)) return facts.is_local(host) ? host : "";
  // A name: hosts files often map a machine's own name to loopback, where no other node gets in.
  std::vector<std::string> usable;
  for (const std::string& address : facts.addresses) {
    if (!is_loopback(address) && facts.is_local(address)) usable.push_back(address);
  }
  return usable.size() == 1 ? usable.front() : "";
}

bool looks_local(const std::string& host, const EndpointFacts& facts) {
  if (host == "localhost" || host == facts.own_host_name) return true;
  return std::any_of(facts.addresses.begin(), facts.addresses.end(), facts.is_local);
}

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

}  // namespace

bool needs_addresses(const LaunchOptions& options) {
  if (options.standalone) return false;
  const std::string& host = options.endpoint_host;
  if (host == "localhost") return false;
  return options.nnodes_max == 1 || options.backend == RendezvousBackend::C10d ||
         options.node_rank == 0;
}

EndpointPlan plan_endpoint(const LaunchOptions& options, const EndpointFacts& facts) {
  EndpointPlan plan;
  const std::string& host = options.endpoint_host;
  if (options.nnodes_max == 1 && (options.standalone || host == "localhost" || host.empty())) {
    plan.bind_address = loopback;
    plan.master_addr = loopback;
    return plan;
  }
  plan.master_addr = host;
  plan.bind_address = listening_address(host, facts);
  if (options.nnodes_max == 1) {
    // Workers of the only node reach any address of it; nobody else has to.
    const auto local = std::find_if(facts.addresses.begin(), facts.addresses.end(), facts.is_local);
    if (plan.bind_address.empty() && local != facts.addresses.end()) plan.bind_address = *local;
  } else if (options.backend == RendezvousBackend::Static) {
    plan.role = options.node_rank == 0 ? EndpointPlan::Role::Host : EndpointPlan::Role::Join;
  } else if (options.is_host) {
    plan.role = *options.is_host ? EndpointPlan::Role::Host : EndpointPlan::Role::Join;
  } else {
    plan.role =
        looks_local(host, facts) ? EndpointPlan::Role::HostIfFree : EndpointPlan::Role::Join;
  }
  if (plan.role != EndpointPlan::Role::Join && !looks_local(host, facts)) {
    plan.warning = fmt::format(
        "{} is not an address of this machine, which hosts the endpoint: listening on all "
        "interfaces",
        host);
  }
  return plan;
}

bool is_local_address(const std::string& address) {
  asio::error_code error;
  const auto parsed = asio::ip::make_address(address, error);
  if (error) return false;
  // bind() is asked: the kernel knows addresses that no interface lists, such as all of
  // 127.0.0.0/8.
  asio::io_context io;
  asio::ip::udp::socket socket(io);
  const asio::ip::udp::endpoint endpoint(parsed, 0);
  socket.open(endpoint.protocol(), error);
  if (!error) socket.bind(endpoint, error);
  return !error;
}

std::string port_holder(int port) {
  namespace fs = std::filesystem;
  const std::set<std::string> inodes = listening_inodes(port);
  if (inodes.empty()) return "";
  std::error_code ignored;
  for (const auto& process : fs::directory_iterator("/proc", ignored)) {
    const std::string pid = process.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code denied;
    for (const auto& fd : fs::directory_iterator(process.path() / "fd", denied)) {
      std::error_code gone;
      const std::string target = fs::read_symlink(fd.path(), gone).string();
      if (target.rfind("socket:[", 0) != 0) continue;
      if (inodes.count(target.substr(8, target.size() - 9)) == 0) continue;
      std::string name;
      std::ifstream comm(process.path() / "comm");
      std::getline(comm, name);
      return fmt::format("pid {} ({})", pid, name);
    }
  }
  return "";
}

}  // namespace ddprun::launcher
