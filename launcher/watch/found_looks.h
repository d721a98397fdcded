// The jobs that a command is about, as they are now and were at the last look.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "launcher/status/job_connection.h"
#include "launcher/watch/endpoint_silence.h"
#include "launcher/watch/remote_job.h"
#include "launcher/watch/status_text.h"
#include "launcher/watch/watch_command.h"

namespace ddprun::launcher {

class FoundLooks {
 public:
  // Its `job`: as is_called() takes it; "" = all. Throws RemoteJobError.
  explicit FoundLooks(const WatchCommand& command);

  using Time = EndpointSilence::Time;
  // Looks again. Who does not answer within `limit`, and is or may be of the job that is meant, is
  // told of in `notes`. Of several launchers of one job, which tell the same, the first is kept. At
  // an endpoint that has never told anything throws RemoteJobError; at another one found() says
  // whether its job is taken for over (endpoint_silence.h).
  void look(std::chrono::milliseconds limit, Time now = std::chrono::steady_clock::now());
  // Every launcher, also when others of its job are here.
  void keep_all() { keeps_all_ = true; }

  bool is_remote() const { return remote_.has_value(); }
  // A question to the first of them, which it passes on to all nodes of its job. Nothing: no
  // answer.
  std::optional<std::string> ask_all_nodes(const FoundJob& job, rendezvous::Query query);

  const std::vector<Look>& looks() const { return looks_; }
  const std::vector<FoundJob>& jobs() const { return jobs_; }       // Of the same order.
  const std::vector<std::string>& notes() const { return notes_; }  // A line each.
  bool found() const { return !looks_.empty() || !notes_.empty(); }

 private:
  // Its host, id, pid and start. A pid alone is another launcher's later on, and on another
  // machine; an older version has no id.
  using Launcher = std::tuple<std::string, std::string, int, std::int64_t>;
  struct Known {
    JobSnapshot snapshot;
    std::string socket;  // "" at an endpoint.
  };

  static Launcher launcher_of(const JobSnapshot& job);
  void remember();
  void look_at_endpoint(std::chrono::milliseconds limit, Time now);
  void add(FoundJob found);
  bool may_be_meant(const FoundJob& silent) const;
  void drop_repeated();

  std::string job_;
  std::optional<RemoteJob> remote_;
  bool keeps_all_ = false;
  bool told_ = false;  // The endpoint has answered once.
  EndpointSilence silence_;
  std::vector<std::string> places_;
  std::vector<Look> looks_;
  std::vector<FoundJob> jobs_;
  std::vector<std::string> notes_;
  std::map<Launcher, Known> before_;
};

// Seconds east of Greenwich, here and now.
long zone_seconds();

}  // namespace ddprun::launcher
