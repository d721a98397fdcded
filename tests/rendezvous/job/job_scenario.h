// A job whose agents are only messages, with time as a number: what the tests of Job share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/job/job.h"
#include "tests/testing/catch.h"

namespace ddprun::rendezvous {

using namespace std::chrono_literals;

inline JobLimits static_job(int nodes, int max_restarts) {
  JobLimits limits;
  limits.run_id = "job";
  limits.round = {.nodes_min = nodes, .nodes_max = nodes, .join_timeout = 600s};
  limits.restarts.restarts_max = max_restarts;
  limits.restarts.backoff_first = 0ms;
  limits.host_node_id = "node1";
  limits.master_addr = "10.0.0.1";
  limits.master_port = 29'500;
  return limits;
}

inline JobLimits elastic_job(int min, int max, int max_restarts) {
  JobLimits limits = static_job(max, max_restarts);
  limits.round.elastic = true;
  limits.round.nodes_min = min;
  limits.round.last_call = 30s;
  return limits;
}

// Peers are numbered from 1; peer n is node rank n-1.
class Scenario {
 public:
  explicit Scenario(JobLimits limits) : limits_(limits), job_(std::move(limits), now_) {}
  Scenario(JobLimits limits, const Inherited& inherited)
      : limits_(limits), job_(std::move(limits), inherited, now_) {}

  void join(PeerId peer, std::optional<int> rank = {}, const std::string& run_id = "job",
            bool listens = true) {
    Hello hello{.run_id = run_id, .node_id = "node" + std::to_string(peer)};
    hello.host = "host" + std::to_string(peer);
    hello.address = "10.0.0." + std::to_string(peer);
    hello.node_rank = rank ? rank : static_cast<int>(peer) - 1;
    if (limits_.round.elastic) hello.node_rank.reset();
    hello.elastic = limits_.round.elastic;
    hello.nproc = 2;
    hello.nnodes_min = limits_.round.nodes_min;
    hello.nnodes_max = limits_.round.nodes_max;
    if (limits_.may_be_taken_over && listens) hello.standby_port = 40'000 + static_cast<int>(peer);
    say(peer, hello);
  }
  // A member of the round that was, with what it had said in it.
  void come_back(PeerId peer, int group_rank, int attempt, bool founder = true, int term = 0) {
    Hello hello{.run_id = "job", .node_id = "node" + std::to_string(peer)};
    hello.host = "host" + std::to_string(peer);
    hello.elastic = true;
    hello.nnodes_min = limits_.round.nodes_min;
    hello.nnodes_max = limits_.round.nodes_max;
    hello.resumes = RoundSeat{term, attempt, group_rank, founder};
    say(peer, hello);
  }
  void take_over(const Inherited& inherited) { take(job_.take_over(inherited, now_)); }
  void say(PeerId peer, const ControlMessage& message) {
    take(job_.on_message(peer, message, now_));
  }
  // A node of a static job that calls itself as another one does.
  void join_as(PeerId peer, const std::string& host, int rank) {
    Hello hello{.run_id = "job", .node_id = "node" + std::to_string(peer), .host = host};
    hello.node_rank = rank;
    hello.nnodes_min = limits_.round.nodes_min;
    hello.nnodes_max = limits_.round.nodes_max;
    say(peer, hello);
  }
  void rejoin(PeerId peer, PeerId before, int term = 0) {
    Hello hello{.run_id = "job", .node_id = "node" + std::to_string(peer)};
    hello.host = "host" + std::to_string(before);
    hello.elastic = true;
    hello.nnodes_min = limits_.round.nodes_min;
    hello.nnodes_max = limits_.round.nodes_max;
    hello.replaces = "node" + std::to_string(before);
    hello.term = term;
    say(peer, hello);
  }
  void progress(std::int64_t position) { job_.on_progress(position); }
  void fail(PeerId peer, FirstCause cause = {.rank = 1, .pid = 77, .signal = 9}) {
    say(peer, WorkerFailed{job_.attempt(), std::move(cause), job_.round().term});
  }
  // Its workers end with 75, because their time is over or because others told them to stop.
  void ask_again(PeerId peer) {
    fail(peer, {.rank = 1, .pid = 77, .exit_code = exit_status::preempted, .retriable = false});
  }
  void succeed(PeerId peer) { say(peer, WorkersSucceeded{job_.attempt(), job_.round().term}); }
  void reap(PeerId peer, int nproc = 0) {
    say(peer, Reaped{job_.attempt(), {}, job_.round().term, nproc});
  }
  void grow(PeerId peer, int nproc, int attempt) { say(peer, CanGrow{attempt, 0, nproc}); }
  void lose(PeerId peer) { take(job_.on_lost(peer, "it closed the connection", now_)); }
  void pass(std::chrono::milliseconds time) { now_ += time; }
  void tick() { take(job_.on_tick(now_)); }
  std::optional<TimePoint::duration> due_in() const {
    const auto next = job_.next_tick();
    return next ? std::optional(*next - now_) : std::nullopt;
  }
  // Lets time pass as a punctual timer would, while the peers given answer every heartbeat.
  void run_for(std::chrono::milliseconds time, const std::vector<PeerId>& alive) {
    for (const TimePoint end = now_ + time; now_ < end;) {
      now_ += 1'000ms;
      for (const PeerId peer : alive) say(peer, Heartbeat{});
      tick();
    }
  }

  // The messages of one kind that a peer got since the last call of this for it.
  template <class T>
  std::vector<T> got(PeerId peer) {
    std::vector<T> result;
    std::erase_if(inbox_[peer], [&](const ControlMessage& message) {
      if (!std::holds_alternative<T>(message)) return false;
      result.push_back(std::get<T>(message));
      return true;
    });
    return result;
  }
  template <class T>
  T got_one(PeerId peer) {
    const auto all = got<T>(peer);
    REQUIRE(all.size() == 1);
    return all.front();
  }

  std::set<PeerId> mute;        // Say nothing about their workers.
  std::vector<PeerId> members;  // Who may use the store.
  std::vector<PeerId> closed;
  std::vector<int> attempts;  // StartAttempt actions.
  std::optional<int> over;    // What the job has ended with.

 private:
  void take(const JobActions& actions) {
    std::vector<PeerId> started;
    for (const JobAction& action : actions) {
      if (const auto* send = std::get_if<SendTo>(&action)) {
        if (std::holds_alternative<RoundStart>(send->message)) {
          CHECK_FALSE(attempts.empty());  // The store is emptied before anybody starts.
          CHECK(attempts.back() == std::get<RoundStart>(send->message).attempt);
          CHECK(std::count(members.begin(), members.end(), send->peer) == 1);
          if (!mute.contains(send->peer)) started.push_back(send->peer);
        }
        inbox_[send->peer].push_back(send->message);
      }
      if (const auto* close = std::get_if<CloseAfterSending>(&action))
        closed.push_back(close->peer);
      if (const auto* now_in = std::get_if<Members>(&action)) members = now_in->peers;
      if (const auto* start = std::get_if<StartAttempt>(&action))
        attempts.push_back(start->round.attempt);
    }
    over = job_.ended_with();
    for (const PeerId peer : started) say(peer, Started{job_.attempt(), job_.round().term});
  }

  JobLimits limits_;
  TimePoint now_{};
  Job job_;
  std::map<PeerId, std::vector<ControlMessage>> inbox_;
};

inline Scenario two_running(int max_restarts) {
  Scenario s(static_job(2, max_restarts));
  s.join(1);
  s.join(2);
  REQUIRE(s.got<RoundStart>(1).size() == 1);
  REQUIRE(s.got<RoundStart>(2).size() == 1);
  return s;
}

}  // namespace ddprun::rendezvous
