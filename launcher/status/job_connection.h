// The asking side of a launcher's socket (status_socket.h), for programs without an event loop.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/status/job_snapshot.h"
#include "rendezvous/control/control_message.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

// Connects to a launcher's socket; one of this machine that nobody listens at is removed. Does not
// wait. Where it fails errno is EAGAIN if too many wait there already.
rendezvous::UniqueFd connect_to_job(int folder, const std::string& name);

// A launcher that could be found.
struct FoundJob {
  std::string folder;
  std::string name;  // Of its socket.
  int pid = 0;       // Who listens.
  // Nothing: it did not answer in time.
  std::optional<JobSnapshot> snapshot;
};

// This user's launchers on this host, in the order in which they were started. All are asked at
// once and have `limit` together. Throws std::system_error where this process may open no more
// files: then none is found, and none has ended.
std::vector<FoundJob> find_jobs(const std::vector<std::string>& places,
                                std::chrono::milliseconds limit);

// One question to one of them. Nothing: it is gone, or does not answer.
std::optional<std::string> ask_job(const FoundJob& job, const rendezvous::Query& query,
                                   std::chrono::milliseconds limit);

}  // namespace ddprun::launcher
