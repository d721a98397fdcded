// The agent's part in noticing workers that stand still or are slow: it looks at them once a second
// while an attempt runs, has stacks taken when StallDetector (stall/stall_detector.h) says so,
// tells people and programs, and counts as lost who is behind, where that is asked for.
//
// A report begins with this node's ranks. Those of the whole job are asked for then, and have some
// seconds: who is behind is not lost before, since the attempt would end with it, and all others
// would be elsewhere.
//
// Who is slow shows beside others alone, and they may be on other nodes: of several the one that
// coordinates the job asks all, each 10 s, and nobody else tells.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/agent_state.h"
#include "launcher/local_attempt.h"
#include "launcher/membership/background_call.h"
#include "launcher/options/launch_options.h"
#include "launcher/output/forwarder.h"
#include "launcher/report/event_log.h"
#include "launcher/report/failure_report.h"
#include "launcher/stall/stall_detector.h"
#include "launcher/stall/straggler_watch.h"
#include "launcher/watched_job.h"

namespace ddprun::launcher {

class StallWatch {
 public:
  // All references must outlive it. `report_is_kept`: somebody will read notes().
  StallWatch(asio::io_context& io, const LaunchOptions& options, LocalAttempt& attempt,
             WatchedJob& watched, EventLog& events, OutputForwarder& output,
             std::function<AgentState()> state, bool report_is_kept);

  // Its workers are there. Looks go on until the agent is in another state than Running.
  void attempt_started();
  const std::vector<StallNote>& notes() const { return notes_; }  // Of all attempts.

 private:
  struct Gathered;
  // A report that waits for the stacks of other nodes.
  struct Waiting {
    int number = 0;
    std::size_t note = 0;
    StackFacts facts;
  };

  void look_later();
  void look();
  void look_for_stragglers();
  void look_at_all_nodes();
  void compare(const std::vector<RankPace>& ranks);
  void tell_straggler(const StragglerNews& news);
  std::vector<RankLook> looks() const;
  RankLook look_at(int local_rank) const;
  void gather(const StallStep& stall);
  void take_stacks(const StallStep& stall, const WatchedJob::Stacks& own);
  StackFacts tell(const StallStep& stall, const Gathered& gathered);
  std::string done_already() const;
  void add_job_stacks(StackFacts facts);
  void job_stacks_told(int number, const JobStackLines& told);
  void reported(StackFacts facts);
  void lose(const StallStep& stall);
  std::string stack_of(int rank) const;

  const LaunchOptions& options_;
  LocalAttempt& attempt_;
  WatchedJob& watched_;
  EventLog& events_;
  OutputForwarder& output_;
  std::function<AgentState()> state_;
  const bool report_is_kept_;
  StallLimits limits_;
  StallDetector detector_;
  StragglerLimits straggler_limits_;
  StragglerWatch stragglers_;
  std::chrono::steady_clock::time_point all_nodes_at_;  // When they are looked at again.
  asio::steady_timer timer_;
  BackgroundCall stacks_call_;
  asio::steady_timer job_stacks_timer_;
  std::optional<Waiting> waiting_;
  int job_stacks_asked_ = 0;           // In this job, so far.
  std::map<int, std::string> stacks_;  // By rank, of the last stall.
  bool gathering_ = false;
  bool asked_ras_ = false;  // Once a job.
  int attempts_ = 0;        // So that what was gathered in an earlier one is not told in this.
  std::vector<StallNote> notes_;
};

}  // namespace ddprun::launcher
