// What happens on this node, for programs: one JSON object a line (docs/event_log.md).
//
// Every line is written whole, in one call, at the end of the file: several agents may share one
// file, and a reader may follow it. That happens in the background, and is waited for as the
// workers' output is. Times are given twice, because only the monotonic one can be subtracted:
// `time_unix_us` and `elapsed_us` (since this launcher started).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "launcher/options/launch_options.h"
#include "launcher/output/forwarder.h"
#include "launcher/processes/exit_status.h"
#include "launcher/workers/worker_end.h"
#include "rendezvous/control/control_message.h"

namespace ddprun::launcher {

// Ranks that have become slow, or with `over` keep up again.
struct SlowRanks {
  std::vector<int> ranks;
  std::string host;
  bool over = false;
  double own_s = 0;  // Of the slowest: of each step, before it waits for others ...
  double others_s = 0;
  std::string why;
};

class EventLog {
 public:
  // Appends to `path`; "" = all calls do nothing. Throws std::system_error, naming the path.
  EventLog(const std::string& path, std::string run_id, std::string host, OutputForwarder& output);
  ~EventLog();
  EventLog(const EventLog&) = delete;

  void launcher_started(const LaunchOptions& options);
  void endpoint_opened(const std::string& address, int port);
  void waiting(const rendezvous::Waiting& waiting);
  void attempt_started(const rendezvous::RoundStart& round);
  void worker_started(int rank, int local_rank, int worker_pid, bool was_spare, bool was_kept);
  void worker_parked(int rank, int local_rank, int worker_pid, std::int64_t parked_ms);
  void stalled(const std::vector<int>& behind, const std::string& why, bool counts_as_lost);
  void straggler(const SlowRanks& slow);
  void worker_ended(const WorkerEnd& end);
  void node_checked(const std::string& unfit, std::int64_t took_ms);
  void spare_started(int place, int pid);
  void spare_ready(int place, int pid, std::int64_t warmed_ms);
  void spare_ended(int place, int pid, const ExitStatus& status);
  void signal_received(int signal, bool forwarded);
  void attempt_verdict(const rendezvous::Stop& stop);
  void attempt_ended(bool succeeded);
  void output_dropped(std::size_t bytes, const std::string& log_dir);
  void job_ended(int exit_status, const std::string& why,
                 const std::optional<rendezvous::FirstCause>& cause);

 private:
  void write(const char* event, const nlohmann::ordered_json& fields);

  std::shared_ptr<BackgroundWriter> file_;
  std::string run_id_;
  std::string host_;
  std::chrono::steady_clock::time_point started_;
  int attempt_ = -1;  // Before the first.
};

}  // namespace ddprun::launcher
