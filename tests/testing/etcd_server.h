// Debian's etcd (package etcd-server) with one member and a folder of its own, on free ports of
// this machine or on a host of tests/testing/network_hosts.h.
#pragma once

#include <csignal>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/patience.h"
#include "tests/testing/process.h"
#include "tests/testing/temporary_folder.h"

namespace ddprun::testing {

class EtcdServer {
 public:
  // Why there can be none here; "" when there can.
  static std::string unavailable() {
    try {
      const ProcessResult result = run({"etcd", "--version"}, patience(std::chrono::seconds(20)));
      return result.status == 0 ? "" : "etcd does not start: " + result.output;
    } catch (const std::exception&) {
      return "no program etcd (package etcd-server; scripts/setup --etcd)";
    }
  }

  // Throws std::runtime_error when it does not come up.
  EtcdServer() : EtcdServer("127.0.0.1", free_port(), free_port(), {}) {}
  // `command`: starts what follows it on the host with this address.
  EtcdServer(const std::string& address, std::vector<std::string> command)
      : EtcdServer(address, 2379, 2380, std::move(command)) {}
  // https, with these PEM files.
  EtcdServer(const std::string& certificate_file, const std::string& key_file)
      : EtcdServer("127.0.0.1", free_port(), free_port(), {}, certificate_file, key_file) {}

  const std::string& url() const { return url_; }

  void start() {
    const std::string data = folder_ / "data";
    std::vector<std::string> argv = command_;
    argv.insert(argv.end(), {"etcd", "--data-dir", data, "--listen-client-urls", url_,
                             "--advertise-client-urls", url_, "--listen-peer-urls", peer_url_,
                             "--initial-advertise-peer-urls", peer_url_, "--initial-cluster",
                             "default=" + peer_url_});
    if (!certificate_file_.empty()) {
      argv.insert(argv.end(), {"--cert-file", certificate_file_, "--key-file", key_file_});
    }
    process_ = std::make_unique<Process>(argv, std::map<std::string, std::string>{});
    if (!process_->wait_for_output("ready to serve client requests", std::chrono::seconds(60))) {
      throw std::runtime_error("etcd does not start: " + process_->output());
    }
  }
  void kill() {
    process_->send_signal(SIGKILL);
    process_->wait(std::chrono::seconds(20));
  }

 private:
  EtcdServer(const std::string& address, int port, int peer_port, std::vector<std::string> command,
             std::string certificate_file = "", std::string key_file = "")
      : command_(std::move(command)),
        url_((certificate_file.empty() ? "http://" : "https://") + address + ":" +
             std::to_string(port)),
        peer_url_("http://" + address + ":" + std::to_string(peer_port)),
        certificate_file_(std::move(certificate_file)),
        key_file_(std::move(key_file)) {
    start();
  }

  TemporaryFolder folder_;
  std::vector<std::string> command_;
  std::string url_, peer_url_, certificate_file_, key_file_;
  std::unique_ptr<Process> process_;
};

}  // namespace ddprun::testing
