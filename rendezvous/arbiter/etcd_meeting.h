// The key of rendezvous/arbiter/meeting.h in an etcd. All calls block, and throw ArbiterError.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "rendezvous/arbiter/etcd_client.h"
#include "rendezvous/arbiter/meeting.h"

namespace ddprun::rendezvous {

class EtcdMeeting {
 public:
  // `name` and `limit` as EtcdClient has them. `lasts`: the lease, from when it was last renewed.
  EtcdMeeting(EtcdServers servers, std::string run_id, std::string name,
              std::chrono::milliseconds limit, std::chrono::seconds lasts)
      : client_(std::move(servers), std::move(name), limit),
        run_id_(std::move(run_id)),
        key_("/ddprun/" + run_id_ + "/leader"),
        lasts_(lasts) {}

  std::optional<Leader> look();
  // From which address of this machine etcd was reached last: others reach it there as a rule.
  const std::string& local_address() const { return client_.local_address(); }
  // False: somebody else has. Again after an error.
  bool put(const Leader& self);
  // What was decided, and done, and who was named before.
  struct Kept {
    Upkeep what = Upkeep::Nothing;
    std::optional<Leader> named;
  };
  Kept keep(const Leader& self);
  // Nobody coordinates the job any more, unless somebody else does.
  void remove(const Leader& self);

 private:
  std::optional<std::string> text_there();
  Leader parse(const std::string& text) const;
  std::string text_of(const Leader& leader) const;
  void renew();

  EtcdClient client_;
  std::string run_id_;
  std::string key_;
  std::chrono::seconds lasts_;
  std::int64_t lease_ = 0;
};

}  // namespace ddprun::rendezvous
