// An arbiter in etcd.
//
//   /ddprun/<run id>/<job>/job                            the job, made by its first coordinator
//   /ddprun/<run id>/<job>/claims/<term>-<attempt>/<n>    claim n on that round, a line of JSON
//   /ddprun/<run id>/<job>/beats/<node_id>                that agent's beat
//
// A claim is put under its number by a transaction that wants the key to have no revision, so that
// of all who try one has it. No key has a lease: when a claim lapses is for those to see who wait
// (claims.h), so that an etcd that was away, or whose clock jumped, takes nothing from anybody.
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include "rendezvous/arbiter/arbiter.h"
#include "rendezvous/arbiter/etcd_client.h"

namespace ddprun::rendezvous {

class EtcdArbiter : public Arbiter {
 public:
  // `name`: for messages. `limit`: of each request, two of which make a task.
  EtcdArbiter(EtcdServers servers, std::string run_id, std::string name,
              std::chrono::milliseconds limit)
      : client_(std::move(servers), std::move(name), limit), run_id_(std::move(run_id)) {}

  void found(const std::string& job) override;
  bool knows(const std::string& job) override;
  Claims carry_out(const std::string& job, const std::string& node_id,
                   const ArbiterTask& task) override;
  void forget(const std::string& job) override;
  std::string name() const override { return client_.name(); }

 private:
  std::string below(const std::string& job) const { return "/ddprun/" + run_id_ + "/" + job + "/"; }

  EtcdClient client_;
  std::string run_id_;
};

}  // namespace ddprun::rendezvous
