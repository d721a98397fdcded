// Several "hosts" for ddprun -H: names that a generated ssh configuration leads to one real sshd of
// the test's own, on the loopback interface, with keys of its own. Sessions there carry the mark of
// the test's place, so that nothing that is left on a "host" goes unseen.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "tests/end_to_end/job_place.h"
#include "tests/testing/network_hosts.h"

namespace ddprun::testing {

class SshHosts {
 public:
  // Why there can be none on this machine; "" = there can.
  static std::string missing() {
    for (const char* program : {"/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen"}) {
      if (::access(program, X_OK) != 0) {
        return std::string("no ") + program + ": scripts/setup --ssh installs it";
      }
    }
    // Where root's sshd parts its privileges; made by the package's own service.
    if (::geteuid() == 0 && !std::filesystem::is_directory("/run/sshd")) {
      return "no folder /run/sshd, which root's sshd needs: mkdir -m 0755 /run/sshd";
    }
    return "";
  }

  // With `network` host-a is its host 0, and so on, each with an sshd of its own; else all are this
  // machine.
  explicit SshHosts(const Place& place, const NetworkHosts* network = nullptr)
      : folder_(place.folder.path() + "/ssh"), network_(network) {
    REQUIRE(std::filesystem::create_directory(folder_));
    for (const char* key : {"host_key", "user_key", "other_key"}) {
      REQUIRE(run({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path(key)}, 20s).status ==
              0);
    }
    std::filesystem::copy(path("user_key.pub"), path("authorized_keys"));
    // Another program may take the port between the look and the start.
    for (int tries = 0; tries < 5 && !start(place); ++tries) {
    }
    REQUIRE(!sshds_.empty());
    write_configuration();
  }

  // "--ssh-options=-F ..." for host-a, host-b, host-c, and for hosts with something wrong:
  // host-unknown (its key), host-denied (our key), host-refused (no sshd).
  std::string options() const { return "--ssh-options=-F " + path("config"); }

 private:
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  bool start(const Place& place) {
    port_ = network_ == nullptr ? free_port() : 2'222;
    std::ofstream(path("sshd_config"))
        << "ListenAddress " << (network_ == nullptr ? "127.0.0.1:" : "0.0.0.0:") << port_
        << "\nHostKey " << path("host_key") << "\nAuthorizedKeysFile " << path("authorized_keys")
        << "\nPidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
           "KbdInteractiveAuthentication no\nPermitRootLogin yes\nMaxStartups 100\n"
        << "SetEnv JOB_PLACE=" << place.folder.path() << " TMPDIR="
        << (place.folder / "tmp")
        // No secret can be made there: nodes have the one that comes with their start.
        << " XDG_CONFIG_HOME=/dev/null"
        << "\n";
    const std::vector<std::string> command{"/usr/sbin/sshd", "-D", "-e", "-f", path("sshd_config")};
    for (int host = 0; host < (network_ == nullptr ? 1 : hosts_of_network); ++host) {
      sshds_.push_back(
          std::make_unique<Process>(network_ == nullptr ? command : network_->on(host, command)));
      if (sshds_.back()->wait_for_output("Server listening", 20s)) continue;
      INFO(sshds_.back()->output());
      sshds_.clear();
      return false;
    }
    return true;
  }

  void write_configuration() const {
    std::ifstream file(path("host_key.pub"));
    std::string type, key;
    file >> type >> key;
    std::ofstream(path("known_hosts")) << "ddprun-test " << type << " " << key << "\n";
    std::ofstream(path("no_known_hosts"));
    std::ofstream config(path("config"));
    for (int host = 0; network_ != nullptr && host < hosts_of_network; ++host) {
      config << "Host host-" << static_cast<char>('a' + host) << "\n  HostName "
             << NetworkHosts::address(host) << "\n";
    }
    config
        << "Host host-refused\n  Port 1\nHost host-denied\n  IdentityFile " << path("other_key")
        << "\nHost host-unknown\n  UserKnownHostsFile " << path("no_known_hosts")
        << "\nHost host-*\n  HostName 127.0.0.1\n  Port " << port_
        << "\n  HostKeyAlias ddprun-test\n  GlobalKnownHostsFile /dev/null\n  IdentitiesOnly yes\n"
        << "  IdentityAgent none\n  StrictHostKeyChecking yes\n";
    config << "Host host-a host-b host-c host-refused host-denied\n  UserKnownHostsFile "
           << path("known_hosts") << "\nHost host-a host-b host-c host-refused host-unknown\n"
           << "  IdentityFile " << path("user_key") << "\n";
  }

  static constexpr int hosts_of_network = 2;

  std::string folder_;
  const NetworkHosts* network_;
  std::uint16_t port_ = 0;
  std::vector<std::unique_ptr<Process>> sshds_;
};

}  // namespace ddprun::testing
