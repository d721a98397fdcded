// A process that has a worker's rank, or had one in the attempt before and waits for the next: all
// that the group (worker_group.h) and those that are kept between attempts (kept_workers.h) know of
// it.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "launcher/output/forwarder.h"
#include "launcher/processes/child_process.h"
#include "launcher/processes/death_order.h"
#include "launcher/processes/exit_status.h"
#include "launcher/workers/child_launch.h"
#include "launcher/workers/parking.h"
#include "launcher/workers/worker_end.h"
#include "launcher/workers/worker_spec.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

struct WorkerProcess {
  WorkerProcess(LaunchedChild started, const WorkerSpec& worker);

  // From here on its end and its words can be waited for. Throws std::system_error, and not from
  // the constructor: whoever owns it has a process to end then.
  void open(asio::io_context& io);

  // Reads what it has said. False: it has closed its end, or the channel is gone already.
  bool hear();
  void send_over(const std::string& why);  // Best effort: who does not hear it is asked later.
  // Its rank in the next attempt, where its output goes from now on. False: it does not take it.
  // Throws std::system_error when its new files cannot be opened.
  bool give_rank(OutputForwarder& output, const WorkerSpec& next, const DeathMarks& marks);

  bool take_status();  // Reaps it, if it has ended.
  // Of a process that is ending, and that the kernel still takes apart: its status, if that can be
  // read and is a failure. A main thread that ends alone has none, and its process goes on.
  bool foresee_status();
  bool is_ending() const { return status && !child.reaped(); }
  // Of one that is ending: whether only its memory is left to free (leavings.h).
  void look_at_leavings();
  bool may_go_on() const;  // It has neither ended nor is about to, and can be given a rank.
  void close();            // Nothing of it is watched any more.
  WorkerEnd end(const ExitStatus& how, std::chrono::steady_clock::time_point when,
                std::string note) const;

  WorkerSpec spec;
  ChildProcess child;
  std::shared_ptr<OutputForwarder::Stream> stream;
  std::optional<asio::posix::stream_descriptor> ended;    // A duplicate of the pidfd.
  std::optional<asio::posix::stream_descriptor> channel;  // Ours, while it keeps its own.
  rendezvous::UniqueFd unopened_channel;                  // Until open().
  Parking parking;
  int index = 0;  // In the group.
  std::chrono::steady_clock::time_point started_at;
  bool stop_sent = false;    // The group was stopped while it was alive.
  bool end_seen = false;     // The pidfd has become readable, and it was its turn.
  bool gone = false;         // Its end was reported.
  bool only_memory = false;  // Once seen: what it leaves does not grow.
  bool was_spare = false;
  bool was_kept = false;

  std::optional<ExitStatus> status;                // Once reaped, or foreseen.
  std::chrono::steady_clock::time_point ended_at;  // As seen.
};

}  // namespace ddprun::launcher
