// This node's spares: processes that were started like workers, have no rank yet, and wait for one
// (rendezvous/contract/spare_channel.h). The shell around SparePlan (spare_plan.h).
//
// Passive, as WorkerGroup, which owns it.
#pragma once

#include <asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/output/forwarder.h"
#include "launcher/processes/child_guard.h"
#include "launcher/processes/death_order.h"
#include "launcher/processes/exit_status.h"
#include "launcher/workers/child_launch.h"
#include "launcher/workers/spare_plan.h"
#include "launcher/workers/worker_spec.h"

namespace ddprun::launcher {

// For the event log. They come from the io_context's thread.
struct SpareEvents {
  std::function<void(int place, int pid)> on_started;
  std::function<void(int place, int pid, std::int64_t warmed_ms)> on_ready;
  std::function<void(int place, int pid, const ExitStatus& status)> on_ended;
  std::function<void()> on_given_up = {};  // For one place, or all: that spare will never be ready.
};

class SparePool {
 public:
  // `output` and `guard` must outlive it. `spares` and `places`: as SparePlan's.
  SparePool(asio::io_context& io, OutputForwarder& output, ChildGuard& guard, int spares,
            int places, SpareEvents events, SpareLimits limits = {});
  ~SparePool();  // Kills and reaps those that have no rank.
  SparePool(const SparePool&) = delete;

  // An attempt runs, without workers in the places `missing`. `specs`: what a spare is started with
  // from now on, by place.
  void attempt_started(std::vector<WorkerSpec> specs, std::vector<int> missing = {});
  void attempt_ended();

  // The process for this worker, if one is ready: it has got its environment, and its output goes
  // where the worker's does. Nothing: start it cold. Throws StartError as launch_child().
  std::optional<LaunchedChild> take(const WorkerSpec& worker, const DeathMarks& marks);

  // The job is over: kills them, and starts none any more.
  void stop();

  std::set<int> sessions() const;  // Of those that have no rank.
  int ready() const;
  bool is_ready(int place) const;
  bool has_given_up(int place) const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::launcher
