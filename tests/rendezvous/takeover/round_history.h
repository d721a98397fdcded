// What the simulated jobs have done so far, and the first thing in it that must never happen. It
// sees all processes at once, as none of them can.
//
// A launcher that is started again at the first endpoint begins another job of the same name, with
// terms and attempts of its own; which job a round is of is the process that began it. Two rounds
// run at once of no two jobs.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/control/control_message.h"

namespace ddprun::simulation {

constexpr int nothing = -1;  // No round, no process, no connection.

class RoundHistory {
 public:
  // A coordinator was elected, or began the job (term 0).
  void leads(int job, int term, const std::string& who);

  struct Member {
    int process = nothing;  // Gone before it could be told.
    rendezvous::RoundStart start;
  };
  // A coordinator that knew `parent` as its last round has closed another one. Its number here.
  int closed(int job, int parent, int attempt, const std::vector<Member>& members);
  // A coordinator says that no other one could be chosen in ignorance of this round.
  void settled(int round);

  struct Workers {  // Of one node: so many, from this rank on.
    int process = nothing;
    int rank_base = 0;
    int count = 0;
  };
  // A node has workers of this round. True: now all its nodes have.
  bool workers_started(int round, const Workers& workers);
  void workers_ended(int round);

  int running() const { return running_; }  // The round whose nodes all have workers.
  int ran() const { return ran_; }          // How many such rounds there were.
  const std::vector<int>& members(int round) const { return at(round).members; }
  int job_of(int round) const { return at(round).job; }
  const std::string& violation() const { return violation_; }

 private:
  struct Round {
    int job = 0;
    int attempt = 0;
    int parent = nothing;
    std::vector<int> members;
    int with_workers = 0;
    std::vector<Workers> started;
  };

  const Round& at(int round) const { return rounds_[static_cast<std::size_t>(round)]; }
  bool descends(int round, int from) const;
  void check_running(int round);
  void violated(std::string what);

  std::vector<Round> rounds_;
  struct Last {  // Of one job.
    int ran = nothing;
    int settled = nothing;
  };
  std::map<std::pair<int, int>, std::string> leaders_;  // By job and term.
  std::map<int, Last> last_;
  int running_ = nothing;
  int ran_ = 0;
  std::string violation_;
};

}  // namespace ddprun::simulation
