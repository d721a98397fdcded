// The local workers of one attempt as one unit: started together, watched, stopped together; those
// that can park are kept for the next one.
//
// Passive: the agent drives it (start, stop) and is told what happened through the callbacks,
// always from the io_context's thread and never from inside a call to this class.
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "launcher/output/forwarder.h"
#include "launcher/processes/child_guard.h"
#include "launcher/workers/group_state.h"
#include "launcher/workers/local_places.h"
#include "launcher/workers/spare_pool.h"
#include "launcher/workers/start_error.h"
#include "launcher/workers/worker_end.h"
#include "launcher/workers/worker_spec.h"

namespace ddprun::launcher {

struct WorkerGroupCallbacks {
  std::function<void(const WorkerEnd&)> on_exit;  // Once per worker, as they began to end.
  std::function<void()> on_all_reaped;            // After the last on_exit, output flushed.
  // One is kept: it has left the attempt, so long after stop().
  std::function<void(int rank, int local_rank, int pid, std::int64_t parked_ms)> on_parked = {};
  // One has left an attempt that nobody has stopped yet.
  std::function<void(int local_rank)> on_left = {};
};

// Makes the calling process a child subreaper: whatever a worker starts, however it detaches, ends
// up as our child and is found. One group per process has workers at any time. A small guard
// process (child_guard.h) kills the workers' processes should this process die by SIGKILL.
class WorkerGroup {
 public:
  WorkerGroup(asio::io_context& io, OutputForwarder& output, WorkerGroupCallbacks callbacks,
              const WorkerGroupLimits& limits = {});
  ~WorkerGroup();  // Kills what is left, with SIGKILL; no callback is called from here on.

  // Keeps this many spares while attempts run, for the first places, and one for each of the
  // `places` that has no worker in an attempt. Call before start().
  void keep_spares(int spares, int places, SpareEvents events, SpareLimits limits = {});

  // Before start(): what is kept and of no use any more is ended, and told by on_exit in this call.
  void look_at_kept();

  // Starts all workers: a process that was kept, or else a spare that is ready, by giving it their
  // rank; none is left running when one cannot be started. `spares`: what spares are started with
  // from now on, by place. Throws StartError. May be called again after on_all_reaped.
  void start(const std::vector<WorkerSpec>& workers, const std::vector<WorkerSpec>& spares = {});

  // No attempt is this node's, and one may be soon: spares are kept ready as in an attempt.
  void stand_by(const std::vector<WorkerSpec>& spares);

  // Sends `signal` to every process of every worker (also when the worker itself is gone), and
  // SIGKILL to what is left after `grace`. Calling again with a shorter grace shortens it; with 0
  // it kills at once. A worker that had died before the signal is not marked stopped_by_us.
  // `keep`: those that can park get no signal (GroupState::stop()); `why` is what they are told.
  // Without it those that were kept are stopped, too, also after on_all_reaped, which comes again.
  void stop(int signal, std::chrono::milliseconds grace, Keep keep = Keep::Nobody,
            const std::string& why = "");
  // Processes that stop() has spared, or that are parked.
  int kept() const;
  // Between two attempts: what is parked is of no use for the next one, and is killed.
  void end_kept();

  // To be called when the main thread of the worker `pid` is ending (life_watch.h), by any thread,
  // also when this object is gone. If that is a failure on_exit tells it then; on_all_reaped comes
  // when the process is gone, as ever.
  std::function<void(int pid)> on_ending();

  // Passes a signal on to the workers themselves without stopping them (--forward-signals).
  void forward_signal(int signal);

  // Halts every process of every worker, kept and spare ones too, and lets them go on again.
  void halt();
  void let_go();

  // Kills this worker of the attempt, with SIGKILL, as if it had died by itself: nobody else is
  // asked to end, and it is not marked stopped_by_us.
  void kill_worker(int local_rank);

  // From now on the guard process removes `folder` when this process is killed. `workers`: that an
  // attempt may have at most; without this call, those of the first start(). Throws
  // std::system_error where there can be no guard.
  void guard(int workers, std::string folder);
  // The guard removes this launcher's socket, too. Again, when it is another one.
  void set_status_socket(std::string path);

  // Who could be given a rank at once.
  std::vector<LocalPlace> places(int count) const;

  // The job is over: spares are killed.
  void stop_spares();
  int spares_ready() const;
  // What the worker of this local rank was before this attempt.
  bool was_spare(int local_rank) const;
  bool was_kept(int local_rank) const;

  // It has said that it can leave the attempt with its process.
  bool can_park(int local_rank) const;

  // What is kept of the end of its stderr; reads what is in the pipe first.
  std::string stderr_tail(int local_rank);

  int running() const;  // Workers whose end was not told.
  std::vector<int> pids() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::launcher
