// Several hosts on one machine: network namespaces on one switch, each with a boot id of its own,
// so that workers of two of them share no memory: everything between them goes through the network.
#pragma once

#include <string>
#include <vector>

#include "tests/testing/temporary_folder.h"

namespace ddprun::testing {

class NetworkHosts {
 public:
  // Why there can be none here; "" when there can. It needs `ip`, CAP_NET_ADMIN for the network,
  // and CAP_SYS_ADMIN for namespaces and for what is mounted in them.
  static std::string unavailable();

  // Throws std::runtime_error when a command fails. Everything is removed with the object, and what
  // a killed test left behind by the next one.
  explicit NetworkHosts(int count);
  ~NetworkHosts();
  NetworkHosts(const NetworkHosts&) = delete;

  // "10.77.0.1" for host 0.
  static std::string address(int host) { return "10.77.0." + std::to_string(host + 1); }

  // The command line that runs `argv` on a host.
  std::vector<std::string> on(int host, const std::vector<std::string>& argv) const;

  // Pulls the plug of a host, or puts it back in.
  void set_plugged(int host, bool plugged) const;

  // Nothing passes between these two any more, while both still reach the others.
  void cut_link(int host, int other) const;
  void heal_link(int host, int other) const;  // That was cut.

  // The switch's cable to this host takes packets of at most `bytes`, and loses larger ones without
  // a word, while all hosts still send what their own interfaces allow.
  void narrow_cable(int host, int bytes) const;

 private:
  std::string name(const std::string& what) const;

  int count_;
  std::string prefix_;
  TemporaryFolder boot_ids_;  // A file for each host.
};

}  // namespace ddprun::testing
