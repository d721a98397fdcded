// The jobs that a command is about, as they are now and were at the last look.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "launcher/watch/job_connection.h"
#include "launcher/watch/status_text.h"

namespace ddprun::launcher {

class FoundLooks {
 public:
  // `job`: as is_called() takes it; "" = all.
  explicit FoundLooks(std::string job);

  // Looks again. Who does not answer within `limit` is told of in `notes`.
  void look(std::chrono::milliseconds limit);

  const std::vector<Look>& looks() const { return looks_; }
  const std::vector<FoundJob>& jobs() const { return jobs_; }       // Of the same order.
  const std::vector<std::string>& notes() const { return notes_; }  // A line each.
  bool found() const { return !looks_.empty() || !notes_.empty(); }

 private:
  std::string job_;
  std::vector<std::string> places_;
  std::vector<Look> looks_;
  std::vector<FoundJob> jobs_;
  std::vector<std::string> notes_;
  std::map<int, JobSnapshot> before_;  // By the launcher's pid.
};

// Seconds east of Greenwich, here and now.
long zone_seconds();

}  // namespace ddprun::launcher
