// One transaction that adds a claim, and one that leaves the beat and reads the list: both want the
// job's key to be there, so that nobody gets a word in a job that was forgotten.
#include "rendezvous/arbiter/etcd_arbiter.h"

#include <fmt/format.h>

#include <cstdlib>
#include <ctime>

#include "rendezvous/arbiter/claim_text.h"
#include "rendezvous/control/visible_text.h"

namespace ddprun::rendezvous {

void EtcdArbiter::found(const std::string& job) {
  client_.run(EtcdTransaction().put(
      below(job) + "job",
      fmt::format("job {} of run id {}, since {}", job, run_id_, claim_time(::time(nullptr)))));
}

bool EtcdArbiter::knows(const std::string& job) {
  return !client_.run(EtcdTransaction().read(below(job) + "job")).values.empty();
}

Claims EtcdArbiter::carry_out(const std::string& job, const std::string& node_id,
                              const ArbiterTask& task) {
  const std::string job_key = below(job) + "job", beats = below(job) + "beats/";
  const std::string list =
      below(job) + fmt::format("claims/{}-{}/", task.round.term, task.round.attempt);
  if (task.add) {
    // Numbers of one length, so that their order is that of the keys. That it was added, or by whom
    // else, is read afterwards: an answer may be lost.
    const std::string number = fmt::format("{}{:08}", list, task.at);
    client_.run(EtcdTransaction().if_present(job_key).if_absent(number).put(
        number, claim_text(*task.add, run_id_, job, task.round, claim_time(::time(nullptr)))));
  }
  EtcdTransaction look;
  look.if_present(job_key);
  if (task.beat) look.put(beats + node_id, std::to_string(*task.beat));
  const EtcdResult seen = client_.run(look.read_below(list).read_below(beats));
  if (!seen.held) {
    throw ArbiterError(
        fmt::format("{}: there is no key {} any more: the job has ended, or somebody removed it",
                    name(), job_key));
  }
  Claims claims;
  for (auto entry = seen.values.lower_bound(list);
       entry != seen.values.end() && entry->first.rfind(list, 0) == 0; ++entry) {
    const auto claim = parse_claim(entry->second);
    if (!claim) {
      throw ArbiterError(fmt::format("{}: the key {} holds no claim of a node but {}", name(),
                                     entry->first, visible_text(entry->second, Lines::Escape)));
    }
    claims.last = *claim;
    ++claims.count;
  }
  const auto beat = seen.values.find(beats + claims.last.holder.node_id);
  if (beat != seen.values.end()) claims.beat = std::strtoull(beat->second.c_str(), nullptr, 10);
  return claims;
}

void EtcdArbiter::forget(const std::string& job) {
  client_.run(EtcdTransaction().remove_below(below(job)));
}

}  // namespace ddprun::rendezvous
