// The agent's part in being watched: it keeps what people ask for later (failures stay visible),
// puts together the snapshot of a moment, and answers at the launcher's socket.
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "launcher/agent_state.h"
#include "launcher/local_attempt.h"
#include "launcher/options/launch_options.h"
#include "launcher/watch/job_snapshot.h"
#include "launcher/watch/status_socket.h"
#include "rendezvous/control/control_message.h"

namespace ddprun::launcher {

class WatchedJob {
 public:
  // All references must outlive it.
  WatchedJob(asio::io_context& io, const LaunchOptions& options, const LocalAttempt& attempt,
             std::string host, std::function<AgentState()> state);

  // From here on others can find the job. Where that cannot be, one line says so.
  void open();
  std::string socket_path() const { return socket_.path(); }  // "" = they cannot.

  void round_started(const rendezvous::RoundStart& round);
  // A failure ended the attempt, here or on another node.
  void failed(const rendezvous::FirstCause& cause);

  JobSnapshot snapshot() const;

 private:
  void answer(const std::string& what, const StatusSocket::Reply& reply) const;
  RankSnapshot rank(int local_rank) const;
  const WorkerEnd* end_of(int pid) const;  // In this attempt; null: it runs.
  void collect_stacks(const StatusSocket::Reply& reply) const;

  asio::io_context& io_;

  const LaunchOptions& options_;
  const LocalAttempt& attempt_;
  std::string host_;
  std::function<AgentState()> state_;
  std::int64_t started_unix_s_;
  std::chrono::steady_clock::time_point since_;
  rendezvous::RoundStart round_;
  int rounds_ = 0;
  std::vector<SeenFailure> failures_;
  int failures_total_ = 0;
  StatusSocket socket_;
};

}  // namespace ddprun::launcher
