// The agent's part in being watched: it keeps what people ask for later (failures stay visible),
// puts together the snapshot of a moment, and answers at the launcher's socket.
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "launcher/agent_state.h"
#include "launcher/gpu_look.h"
#include "launcher/job_stacks.h"
#include "launcher/job_view.h"
#include "launcher/local_attempt.h"
#include "launcher/membership/background_call.h"
#include "launcher/options/launch_options.h"
#include "launcher/stall/node_paces.h"
#include "launcher/status/job_snapshot.h"
#include "launcher/status/process_use.h"
#include "launcher/status/status_socket.h"
#include "rendezvous/control/control_message.h"

namespace ddprun::launcher {

// As which others are shown an agent in that state, but for one whose node is being checked.
NodeState node_state(AgentState state);

class WatchedJob {
 public:
  // All references must outlive it.
  WatchedJob(asio::io_context& io, const LaunchOptions& options, const LocalAttempt& attempt,
             std::string host, std::function<NodeState()> state, JobViewWays ways);

  // From here on others can find the job, by a socket of which `on_open` hears the path; where its
  // name is removed another one is made. Where that cannot be, one line says so.
  void open(std::function<void(const std::string& path)> on_open);

  void round_started(const rendezvous::RoundStart& round);
  // An attempt ended for this, here or on another node. It is kept if it is a failure.
  void attempt_ended(const rendezvous::FirstCause& cause);

  // With GPUs and the other nodes as they were when they were looked at last.
  JobSnapshot snapshot() const;
  // At this node's GPUs and, with `others`, at the other nodes; takes a second at most.
  void look_around(bool others, std::function<void()> done);

  // To somebody who looks at the job from elsewhere, when this node coordinates it: all nodes.
  void answer_for_job(const rendezvous::Query& query,
                      std::function<void(const std::string&)> reply);
  // To the coordinator: this node.
  void answer_for_node(const rendezvous::Query& query,
                       std::function<void(const std::string&)> reply);

  // Of the workers that can tell, what they answer within a second, by rank. `rank` < 0: of all.
  using Stacks = std::map<int, std::string>;
  void ask_stacks(int rank, std::function<void(const Stacks&)> done) const;

  // Of all ranks of a job of several nodes, equal ones once, for a report. `done` comes within some
  // 25 s, or not at all.
  void ask_job_stacks(std::function<void(const JobStackLines&)> done);

  // What this node's ranks need of a step, as far as they train and say it.
  NodePaces paces() const;
  // Whether this node can ask all others for theirs. `done` gets this node's, too.
  bool leads() const { return view_.leads(); }
  void ask_paces(std::chrono::milliseconds limit,
                 std::function<void(const std::vector<NodePaces>&)> done) const;

 private:
  void serve(std::unique_ptr<RunSocket> socket);
  void open_again();
  void answer(const rendezvous::Query& query, const StatusSocket::Reply& reply);
  void tell_snapshot(std::function<void(const std::string&)> reply);
  JobSnapshot own_snapshot() const;
  // Stacks or ends of logs of this node's ranks.
  using LinesDone = std::function<void(const std::vector<std::string>& lines)>;
  void collect_lines(const rendezvous::Query& query, LinesDone done);
  NodeLines own_lines(const std::vector<std::string>& lines) const;
  void collect_own_stacks(std::function<void(NodeLines)> done);
  void lines_collected(const std::vector<std::string>& lines);
  RankSnapshot rank(int local_rank) const;
  void add_gpus(std::vector<RankSnapshot>& ranks) const;
  const WorkerEnd* end_of(int pid) const;  // In this attempt; null: it runs.
  // `done`: by rank, in the socket's own form.
  void collect_stacks(int rank, std::function<void(const std::string& json)> done) const;

  asio::io_context& io_;

  const LaunchOptions& options_;
  const LocalAttempt& attempt_;
  const LauncherIdentity own_;
  std::function<NodeState()> state_;
  std::int64_t started_unix_s_;
  std::chrono::steady_clock::time_point since_;
  rendezvous::RoundStart round_;
  int rounds_ = 0;
  std::vector<SeenFailure> failures_;
  int failures_total_ = 0;
  JobView view_;
  JobStacks job_stacks_;
  GpuLook gpus_;
  mutable ProcessorTimes times_;  // What was told, by each snapshot.
  BackgroundCall lines_call_;
  rendezvous::Query collected_;        // What `lines_call_` is about ...
  std::vector<LinesDone> collecting_;  // ... and who waits for it.
  StatusSocket socket_;
  BackgroundCall folder_call_;
  std::function<void(const std::string& path)> on_open_;
};

}  // namespace ddprun::launcher
