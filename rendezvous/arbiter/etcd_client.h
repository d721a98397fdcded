// Requests to etcd's v3 API through its JSON gateway (etcd 3.4 and later), as far as a job needs
// them.
//
// The binary protocol (gRPC) would need a library of its own. Every call blocks, for at most
// `limit`, and tries the servers one after the other, beginning with the last that answered.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "rendezvous/arbiter/arbiter.h"
#include "rendezvous/arbiter/etcd_servers.h"
#include "rendezvous/arbiter/etcd_text.h"

namespace ddprun::rendezvous {

class EtcdClient {
 public:
  // `name`: for messages. `limit`: of one call, over all servers.
  EtcdClient(EtcdServers servers, std::string name, std::chrono::milliseconds limit)
      : servers_(std::move(servers)), name_(std::move(name)), limit_(limit) {}

  // All throw ArbiterError. After one a transaction may have been done, or be done yet: it has to
  // be one that may be done twice.
  EtcdResult run(const EtcdTransaction& transaction);
  std::int64_t grant(std::chrono::seconds lasts);
  bool keep_alive(std::int64_t lease);  // False: there is none any more.
  void revoke(std::int64_t lease);

  const std::string& name() const { return name_; }
  // From which address of this machine a server was reached last.
  const std::string& local_address() const { return local_address_; }

 private:
  std::string call(const std::string& path, const std::string& body);
  std::string post(const std::string& url, const std::string& body,
                   std::chrono::steady_clock::time_point until);
  [[noreturn]] void not_understood(const std::string& path, const std::string& body) const;

  EtcdServers servers_;
  std::string name_;
  std::chrono::milliseconds limit_;
  std::size_t first_ = 0;  // The server to try first.
  std::string local_address_;
};

}  // namespace ddprun::rendezvous
