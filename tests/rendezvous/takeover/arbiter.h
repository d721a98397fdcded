// The tie-breaker of simulated jobs: for each job and round a list of claims that only grows, as a
// file or etcd keeps it, without their failures (Fault::Kind::NoArbiter is the asker's).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/arbiter/claimant.h"

namespace ddprun::simulation {

class Arbiter {
 public:
  rendezvous::ArbiterReply answer(const std::string& job, const std::string& node_id,
                                  const rendezvous::ArbiterTask& task);

 private:
  struct ListOfClaims {
    std::vector<rendezvous::Claim> claims;
    std::map<std::string, std::uint64_t> beats;  // By node.
  };
  std::map<std::pair<std::string, rendezvous::RoundName>, ListOfClaims> lists_;
};

}  // namespace ddprun::simulation
