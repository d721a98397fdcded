// What is done with one process at a time; whose turn it is, and what that means for the others, is
// the group's.
#include "launcher/workers/worker_process.h"

#include <sys/socket.h>

#include <cerrno>
#include <climits>
#include <string_view>
#include <utility>

#include "launcher/processes/child_sessions.h"
#include "launcher/processes/leavings.h"
#include "launcher/workers/rank_channel.h"
#include "rendezvous/contract/spare_channel.h"

namespace ddprun::launcher {

WorkerProcess::WorkerProcess(LaunchedChild started, const WorkerSpec& worker)
    : spec(worker),
      child(std::move(started.process)),
      stream(std::move(started.stream)),
      unopened_channel(std::move(started.channel)),
      started_at(std::chrono::steady_clock::now()) {}

void WorkerProcess::open(asio::io_context& io) {
  // asio closes what it is given; the child keeps its own.
  rendezvous::hand_over(rendezvous::duplicate(child.pidfd()), ended.emplace(io));
  if (unopened_channel) rendezvous::hand_over(std::move(unopened_channel), channel.emplace(io));
}

bool WorkerProcess::hear() {
  if (!channel) return false;
  char said[64];
  const ssize_t count = ::recv(channel->native_handle(), said, sizeof said, MSG_DONTWAIT);
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return false;
  if (count > 0) parking.hear(std::string_view(said, static_cast<std::size_t>(count)));
  return true;
}

void WorkerProcess::send_over(const std::string& why) {
  send_whole(channel->native_handle(), rendezvous::attempt_over_message(why));
}

bool WorkerProcess::give_rank(OutputForwarder& output, const WorkerSpec& next,
                              const DeathMarks& marks) {
  // Before it hears its rank: what it writes then is the new attempt's.
  output.redirect(*stream, next.output);
  OutputForwarder::forget_stderr(*stream);
  if (!send_whole(channel->native_handle(), rank_message_for(next, marks))) return false;
  spec = next;
  started_at = std::chrono::steady_clock::now();
  parking.give_rank();
  stop_sent = was_spare = false;
  was_kept = true;
  return true;
}

bool WorkerProcess::take_status() {
  if (child.reaped()) return true;
  const auto how = child.reap();
  if (!status) status = how;
  return how.has_value();
}

bool WorkerProcess::foresee_status() {
  if (!status) status = read_coming_status(child.pid());
  return status.has_value();
}

void WorkerProcess::look_at_leavings() {
  only_memory = only_memory || leaves_only_memory(child.pid());
}

bool WorkerProcess::may_go_on() const {
  return channel && !child.has_ended() && !is_exiting(child.pid());
}

void WorkerProcess::close() {
  ended.reset();
  channel.reset();
}

WorkerEnd WorkerProcess::end(const ExitStatus& how, std::chrono::steady_clock::time_point when,
                             std::string note) const {
  WorkerEnd end;
  end.rank = spec.rank;
  end.local_rank = spec.local_rank;
  end.pid = child.pid();
  end.exit_code = how.exit_code;
  end.signal = how.signal;
  end.core_dumped = how.core_dumped;
  end.stopped_by_us = stop_sent;
  end.ran_ms = std::chrono::duration_cast<std::chrono::milliseconds>(when - started_at).count();
  end.note = std::move(note);
  end.last_stderr = OutputForwarder::last_stderr(*stream);
  end.stderr_tail = OutputForwarder::last_stderr(*stream, INT_MAX);
  end.when = when;
  return end;
}

}  // namespace ddprun::launcher
