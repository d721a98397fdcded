// What this launcher knows of the job's other nodes, for people who look at it here.
//
// Asked only when somebody looks, at most twice a second, however many look: a job that nobody
// watches sends nothing. The node that coordinates the job asks all others; each other one asks it.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "launcher/stall/node_paces.h"
#include "launcher/status/job_snapshot.h"
#include "launcher/status/node_lines.h"
#include "rendezvous/control/control_message.h"
#include "rendezvous/control/job_query.h"
#include "rendezvous/coordinator.h"

namespace ddprun::launcher {

// Ways to the others, as Membership has them.
struct JobViewWays {
  std::function<bool()> leads;
  std::function<void(const rendezvous::Query&, std::chrono::milliseconds limit,
                     std::function<void(const std::vector<rendezvous::NodeTold>&)> done)>
      ask_nodes;
  std::function<void(const rendezvous::Query&, std::chrono::milliseconds limit,
                     std::function<void(const rendezvous::QueryAnswer&)> done)>
      ask_coordinator;
};

// What nodes have answered to a question for lines, each with why there are none.
std::vector<NodeLines> lines_of(const std::vector<rendezvous::NodeTold>& nodes);

// Of all ranks of a job, as stall/equal_stacks.h has them; else why there are none.
struct JobStackLines {
  std::vector<std::string> lines;
  std::string why;
};

class JobView {
 public:
  // `alone`: the job has this node and no other.
  JobView(bool alone, LauncherIdentity own, JobViewWays ways);

  // Looks at the others, unless that was just done; who does not answer keeps what was known of it.
  // `done` comes at once or from the loop, a second later at most.
  void refresh(std::function<void()> done);
  std::vector<NodeView> others() const;  // Ages are those of now.
  // Why nothing is known of them; "" = it is.
  const std::string& problem() const { return problem_; }

  // Asks all other nodes for their stacks or logs. Those of this one are given to what comes back,
  // once: `done` gets all as soon as both are there.
  std::function<void(NodeLines own)> lines(const rendezvous::Query& query,
                                           std::function<void(const std::vector<NodeLines>&)> done);

  // Asks the node that coordinates the job, another one, for the stacks of all ranks.
  void job_stacks(std::function<void(const JobStackLines&)> done) const;

  // This node coordinates a job that has others, and can ask them for ...
  bool leads() const { return !alone_ && ways_.leads(); }
  // ... their stacks, which are as they came ...
  void stacks_of_others(
      std::function<void(const std::vector<rendezvous::NodeTold>& nodes)> done) const;
  // ... and what their ranks need of a step: nothing of who is too old to tell, or does not in
  // time.
  void paces(int world_size, std::chrono::milliseconds limit,
             std::function<void(std::vector<NodePaces> others)> done) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Seen {
    NodeView view;
    Clock::time_point heard_at;
    Clock::time_point told_at;
  };

  void take(const std::vector<rendezvous::NodeTold>& nodes, Clock::time_point asked_at);
  void take(const rendezvous::QueryAnswer& answer, Clock::time_point asked_at);
  void keep_or_replace(std::vector<Seen> seen);
  void looked();

  const bool alone_;
  const LauncherIdentity own_;
  JobViewWays ways_;
  std::vector<Seen> seen_;
  std::vector<std::function<void()>> waiting_;
  std::chrono::steady_clock::time_point looked_at_;
  std::string problem_;
};

}  // namespace ddprun::launcher
