// Namespaces, a bridge in one of its own, and a pair of virtual cables for each host.
#include "tests/testing/network_hosts.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <utility>

#include "tests/testing/process.h"

namespace ddprun::testing {
namespace {

using namespace std::chrono_literals;
constexpr const char* family = "ddprun-";  // ddprun-<pid of the test>-<what>

// Workers take each other for neighbours, who share memory, when they see the same boot id. What is
// mounted over it is seen by this command and its descendants alone: `ip netns exec` gives each a
// mount namespace. The shell becomes the command, so that its process id is the one that was
// started.
constexpr const char* with_own_boot_id =
    R"(mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@")";

bool try_ip(const std::vector<std::string>& words, std::string& output) {
  std::vector<std::string> argv = {"ip"};
  argv.insert(argv.end(), words.begin(), words.end());
  const ProcessResult result = run(argv, 20s);
  output = result.output;
  return result.status == 0;
}

void ip(const std::vector<std::string>& words) {
  std::string output;
  if (try_ip(words, output)) return;
  std::string command = "ip";
  for (const std::string& word : words) command += " " + word;
  throw std::runtime_error(command + ": " + output);
}

void remove_left_behind() {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/run/netns", none)) {
    const std::string name = entry.path().filename();
    if (name.rfind(family, 0) != 0) continue;
    const int pid = std::atoi(name.c_str() + std::string(family).size());
    std::string ignored;
    if (pid > 0 && ::kill(pid, 0) != 0) try_ip({"netns", "del", name}, ignored);
  }
}

}  // namespace

std::string NetworkHosts::unavailable() {
  std::string output;
  const std::string probe = family + std::to_string(getpid()) + "-probe";
  try {
    if (!try_ip({"netns", "add", probe}, output)) return "no network namespaces: " + output;
    std::string mounting, ignored;
    const bool can_mount = try_ip(
        {"netns", "exec", probe, "sh", "-c", with_own_boot_id, "/dev/null", "true"}, mounting);
    try_ip({"netns", "del", probe}, ignored);
    if (!can_mount) return "no boot id for each host: " + mounting;
  } catch (const std::exception& error) {
    return std::string("no program ip (package iproute2): ") + error.what();
  }
  return "";
}

NetworkHosts::NetworkHosts(int count)
    : count_(count), prefix_(family + std::to_string(getpid()) + "-") {
  remove_left_behind();
  const std::string network = name("switch");
  ip({"netns", "add", network});
  ip({"-n", network, "link", "add", "bridge", "type", "bridge"});
  ip({"-n", network, "link", "set", "bridge", "up"});
  for (int host = 0; host < count; ++host) {
    const std::string own = name(std::to_string(host));
    const std::string cable = "port" + std::to_string(host);
    ip({"netns", "add", own});
    ip({"-n", network, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", own});
    ip({"-n", network, "link", "set", cable, "master", "bridge", "up"});
    ip({"-n", own, "address", "add", address(host) + "/24", "dev", "eth0"});
    ip({"-n", own, "link", "set", "eth0", "up"});
    ip({"-n", own, "link", "set", "lo", "up"});
    std::ofstream(boot_ids_ / std::to_string(host)) << "boot-of-" << own << '\n';
  }
}

NetworkHosts::~NetworkHosts() {
  std::string ignored;
  for (int host = 0; host < count_; ++host) {
    try_ip({"netns", "del", name(std::to_string(host))}, ignored);
  }
  try_ip({"netns", "del", name("switch")}, ignored);
}

std::string NetworkHosts::name(const std::string& what) const { return prefix_ + what; }

std::vector<std::string> NetworkHosts::on(int host, const std::vector<std::string>& argv) const {
  std::vector<std::string> command = {
      "ip", "netns", "exec",           name(std::to_string(host)),
      "sh", "-c",    with_own_boot_id, boot_ids_ / std::to_string(host)};
  command.insert(command.end(), argv.begin(), argv.end());
  return command;
}

void NetworkHosts::set_plugged(int host, bool plugged) const {
  ip({"-n", name("switch"), "link", "set", "port" + std::to_string(host), plugged ? "up" : "down"});
}

void NetworkHosts::cut_link(int host, int other) const {
  // To a card that nobody has: frames leave and arrive nowhere, as in a broken switch. A route that
  // refuses would tell the sender at once.
  for (const auto& [from, to] : {std::pair(host, other), std::pair(other, host)}) {
    ip({"-n", name(std::to_string(from)), "neigh", "replace", address(to), "lladdr",
        "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0"});
  }
}

void NetworkHosts::heal_link(int host, int other) const {
  for (const auto& [from, to] : {std::pair(host, other), std::pair(other, host)}) {
    ip({"-n", name(std::to_string(from)), "neigh", "del", address(to), "dev", "eth0"});
  }
}

void NetworkHosts::narrow_cable(int host, int bytes) const {
  // Real cards cut large sends into packets themselves; a virtual cable would pass them whole, and
  // a bridge takes those for what somebody will cut later.
  for (int each = 0; each < count_; ++each) {
    ip({"-n", name(std::to_string(each)), "link", "set", "eth0", "gso_max_segs", "1"});
  }
  ip({"-n", name("switch"), "link", "set", "port" + std::to_string(host), "mtu",
      std::to_string(bytes)});
}

}  // namespace ddprun::testing
