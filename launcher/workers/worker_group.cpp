// The shell around GroupState (group_state.h): pidfds, SIGCHLD, /proc and timers in, signals and
// callbacks out.
//
//   start --> pidfd readable --> reap, on_exit        (each worker)
//                  |
//                  v  the last one
//             anything left? --no--> drain output, on_all_reaped
//                  | yes                    ^
//                  v                        |
//             SIGTERM, grace, SIGKILL, kill_wait
//
// A worker that is parked (rendezvous/spare_channel.h) is left out of this, and stays in the list
// of workers until the next start().
#include "launcher/workers/worker_group.h"

#include <fcntl.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <cassert>
#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>
#include <set>
#include <system_error>

#include "launcher/workers/child_guard.h"
#include "launcher/workers/child_launch.h"
#include "launcher/workers/child_process.h"
#include "launcher/workers/group_state.h"
#include "launcher/workers/rank_channel.h"
#include "launcher/workers/worker_members.h"
#include "rendezvous/control/first_cause.h"
#include "rendezvous/spare_channel.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {

// Not in an anonymous namespace: g++ warns of WorkerGroup::Impl, which has a list of them and is
// not in one either, where units are compiled together.
struct Worker {
  explicit Worker(ChildProcess started) : child(std::move(started)) {}

  WorkerSpec spec;
  ChildProcess child;
  std::optional<asio::posix::stream_descriptor> ended;  // A duplicate of the pidfd.
  std::shared_ptr<OutputForwarder::Stream> stream;
  int index = 0;  // In the group.
  std::chrono::steady_clock::time_point started_at;
  bool stop_sent = false;  // stop() was called while it was alive.
  bool end_seen = false;   // The pidfd has become readable, and it was its turn.
  bool gone = false;       // on_exit was called.
  bool was_spare = false;
  bool was_kept = false;

  std::optional<asio::posix::stream_descriptor> channel;  // Ours, while it keeps its own.
  bool asked = false;     // It was sent a signal to end, in this attempt.
  bool can_park = false;  // It says so.
  bool parked = false;
  bool told_parked = false;  // on_parked was called.
  bool told_over = false;    // That the attempt is over.
  bool late = false;         // It has not parked in time.

  std::optional<ExitStatus> status;                // Once reaped.
  std::chrono::steady_clock::time_point ended_at;  // As seen.
};

namespace {
using Clock = std::chrono::steady_clock;
}  // namespace

struct WorkerGroup::Impl : std::enable_shared_from_this<Impl> {
  Impl(asio::io_context& io_context, OutputForwarder& forwarder, WorkerGroupCallbacks handlers,
       WorkerGroupLimits group_limits)
      : io(io_context),
        output(forwarder),
        callbacks(std::move(handlers)),
        limits(group_limits),
        state(group_limits),
        child_signal(io),
        deadline_timer(io),
        order_timer(io) {}

  void start(const std::vector<WorkerSpec>& specs, const std::vector<WorkerSpec>& spare_specs);
  void start_one(const WorkerSpec& spec, bool may_inherit_stdout, std::shared_ptr<Worker> parked);
  void become_active();
  bool give_rank(const std::shared_ptr<Worker>& parked, const WorkerSpec& spec,
                 const DeathMarks& marks);
  void watch(const std::shared_ptr<Worker>& worker);
  void watch_channel(const std::shared_ptr<Worker>& worker);
  void hear(Worker& worker);
  void on_channel_closed(Worker& worker);
  void tell_parked();
  void settle_soon();
  void on_kept_ended(const std::shared_ptr<Worker>& worker);
  void report_kept(const std::shared_ptr<Worker>& worker);
  void look_at_kept();
  void end_kept(const std::shared_ptr<Worker>& worker);
  void watch_orphans();
  void on_leader_ended(const std::shared_ptr<Worker>& worker);
  bool take_status(Worker& worker);
  bool ended_earlier(const Worker& other, const Worker& ended) const;
  std::vector<GroupMember> as_members() const;
  void report_ended();
  void report(Worker& worker, const ExitStatus& status, Clock::time_point when, std::string note);
  void stop(int signal, std::chrono::milliseconds grace, Keep keep, const std::string& why);
  void mark_stopped();
  void mark_asked();
  void tell_over();
  void carry_out(const GroupStep& step, int ended_pid = 0);
  void watch_deadline();
  void watch_order();
  void give_up();
  void settle();
  void keep_guard();
  void finish();
  void kill_now();
  std::vector<int> leaders() const;
  std::set<int> kept_sessions() const;
  GroupMember as_member(const Worker& worker) const;
  bool stays(const Worker& worker) const;
  int parking() const;
  int kept() const;
  void kill_members();
  void name_leftovers();
  int running() const;
  bool is_active() const { return state.active() && !abandoned; }

  asio::io_context& io;
  OutputForwarder& output;
  WorkerGroupCallbacks callbacks;
  WorkerGroupLimits limits;
  GroupState state;
  asio::signal_set child_signal;
  asio::steady_timer deadline_timer;
  asio::steady_timer order_timer;  // How long a worker's end is kept back for an earlier one's.
  std::unique_ptr<DeathOrder> order;
  std::unique_ptr<ChildGuard> guard;
  std::function<std::unique_ptr<SparePool>()> make_spares;  // Set where some are wanted.
  std::unique_ptr<SparePool> spares;                        // Goes before the guard.
  std::string temporary_folder;                             // For the guard.
  std::set<int> named_leftovers;                            // Of this attempt.
  std::vector<std::shared_ptr<Worker>> workers;  // While no attempt runs: those that are parked.
  std::string over_why;                          // For those who can park ...
  Clock::time_point over_at;                     // ... since then.
  WorkerMembers members;
  bool abandoned = false;  // The owner has gone: nothing is told any more.
  int generation = 0;      // Counts start(): a late handler knows it is late.
  std::optional<Clock::time_point> watched_deadline;  // What the timers are set to.
  std::optional<Clock::time_point> watched_order;
};

void WorkerGroup::Impl::start(const std::vector<WorkerSpec>& specs,
                              const std::vector<WorkerSpec>& spare_specs) {
  if (state.active()) throw StartError("the workers of the attempt before have not ended", EBUSY);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (!guard) {
    order = std::make_unique<DeathOrder>(static_cast<int>(specs.size()));
    guard = std::make_unique<ChildGuard>(order->id());
    if (make_spares) spares = make_spares();
  }
  order->reset();
  if (!temporary_folder.empty()) guard->set_temporary_folder(temporary_folder);
  const auto writers = std::count_if(
      specs.begin(), specs.end(), [](const WorkerSpec& spec) { return spec.output.out.console; });
  child_signal.add(SIGCHLD);  // Before the first worker: an orphan may die as soon as that runs.
  auto parked = std::exchange(workers, {});
  const auto take_parked = [&](int local_rank) {
    const auto found = std::find_if(parked.begin(), parked.end(), [&](const auto& worker) {
      return worker->spec.local_rank == local_rank;
    });
    if (found == parked.end()) return std::shared_ptr<Worker>();
    const auto worker = *found;
    parked.erase(found);
    return worker;
  };
  try {
    for (const WorkerSpec& spec : specs) {
      start_one(spec, writers == 1, take_parked(spec.local_rank));
    }
  } catch (...) {
    workers.insert(workers.end(), parked.begin(), parked.end());
    kill_now();
    throw;
  }
  become_active();
  for (const auto& left_over : parked) end_kept(left_over);
  if (spares) spares->attempt_started(spare_specs);
  if (workers.empty()) asio::post(io, [self = shared_from_this()] { self->settle(); });
}

// SIGCHLD may have been asked for before: asio takes that as done.
void WorkerGroup::Impl::become_active() {
  ++generation;
  members.forget_asked();
  named_leftovers.clear();
  child_signal.add(SIGCHLD);
  state.started();
  watch_orphans();
}

void WorkerGroup::Impl::start_one(const WorkerSpec& spec, bool may_inherit_stdout,
                                  std::shared_ptr<Worker> parked) {
  const int index = static_cast<int>(workers.size());
  const DeathMarks marks = index < order->workers() ? order->marks(index) : DeathMarks{};
  // A survivor is the best spare of its own local rank: it has state.
  if (parked && give_rank(parked, spec, marks)) {
    parked->index = index;
    workers.push_back(std::move(parked));
    return;
  }
  if (parked) end_kept(parked);
  std::optional<LaunchedChild> spare = spares ? spares->take(spec, marks) : std::nullopt;
  const bool was_spare = spare.has_value();
  LaunchedChild launched =
      was_spare ? std::move(*spare)
                : launch_child(spec, output, guard->variable(), may_inherit_stdout, marks);
  auto worker = std::make_shared<Worker>(std::move(launched.process));
  worker->spec = spec;
  worker->index = index;
  worker->stream = std::move(launched.stream);
  worker->started_at = Clock::now();
  worker->was_spare = was_spare;
  guard->add_session(worker->child.pid());
  workers.push_back(worker);
  watch(
      worker);  // Now, not after the last start: epoll tells in which order they die from here on.
  if (!launched.channel) return;
  worker->channel.emplace(io, launched.channel.release());
  watch_channel(worker);
}

// False: it is of no use, and another process has to take its place.
bool WorkerGroup::Impl::give_rank(const std::shared_ptr<Worker>& parked, const WorkerSpec& spec,
                                  const DeathMarks& marks) {
  if (!parked->channel) return false;
  // Before it hears its rank: what it writes then is the new attempt's.
  try {
    output.redirect(*parked->stream, spec.output);
  } catch (const std::system_error& error) {
    end_kept(parked);
    throw StartError("cannot start worker " + std::to_string(spec.local_rank) + ": " + error.what(),
                     error.code().value());
  }
  OutputForwarder::forget_stderr(*parked->stream);
  if (!send_whole(parked->channel->native_handle(), rank_message_for(spec, marks))) {
    spdlog::warn(
        "the kept process of local rank {} (pid {}) does not take its rank ({}); another one takes "
        "its place",
        spec.local_rank, parked->child.pid(), std::strerror(errno));
    return false;
  }
  parked->spec = spec;
  parked->started_at = Clock::now();
  parked->stop_sent = parked->asked = parked->told_over = false;
  parked->parked = parked->told_parked = parked->was_spare = false;
  parked->was_kept = true;
  return true;
}

void WorkerGroup::Impl::watch(const std::shared_ptr<Worker>& worker) {
  // asio closes what it is given; the child keeps its own.
  worker->ended.emplace(io, ::fcntl(worker->child.pidfd(), F_DUPFD_CLOEXEC, 0));
  worker->ended->async_wait(asio::posix::stream_descriptor::wait_read,
                            [weak = weak_from_this(), worker](const asio::error_code& error) {
                              const auto self = weak.lock();
                              if (!error && self) self->on_leader_ended(worker);
                            });
}

void WorkerGroup::Impl::watch_channel(const std::shared_ptr<Worker>& worker) {
  worker->channel->async_wait(asio::posix::stream_descriptor::wait_read,
                              [weak = weak_from_this(), worker](const asio::error_code& error) {
                                const auto self = weak.lock();
                                if (error || !self || worker->gone || !worker->channel) return;
                                self->hear(*worker);
                                if (worker->channel) self->watch_channel(worker);
                                if (!self->is_active() || !worker->parked) return;
                                self->tell_parked();
                                self->settle();
                              });
}

void WorkerGroup::Impl::hear(Worker& worker) {
  if (!worker.channel) return;
  char said[64];
  const ssize_t count = ::recv(worker.channel->native_handle(), said, sizeof said, MSG_DONTWAIT);
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) {
    return on_channel_closed(worker);
  }
  for (ssize_t i = 0; i < count; ++i) {
    if (said[i] == rendezvous::can_park) worker.can_park = true;
    if (said[i] == rendezvous::gives_rank_back && worker.can_park) worker.parked = true;
  }
}

void WorkerGroup::Impl::tell_parked() {
  const auto self = shared_from_this();
  const auto now = Clock::now();
  for (const auto& worker : std::vector(workers)) {
    if (!worker->parked || !stays(*worker) || std::exchange(worker->told_parked, true)) continue;
    if (!callbacks.on_parked) continue;
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(now - over_at);
    callbacks.on_parked(worker->spec.rank, worker->spec.local_rank, worker->child.pid(),
                        took.count());
  }
}

// It cannot be given a rank any more. It may be about to end, too.
void WorkerGroup::Impl::on_channel_closed(Worker& worker) {
  const bool was_parked = std::exchange(worker.parked, false);
  worker.channel.reset();
  worker.can_park = false;
  if (is_active()) return carry_out(state.parker_lost());
  if (was_parked) worker.child.send_to_group(SIGKILL);
}

// Orphans that we adopt die too, and someone has to reap them.
void WorkerGroup::Impl::watch_orphans() {
  if (!is_active()) return;
  child_signal.async_wait(
      [weak = weak_from_this(), born = generation](const asio::error_code& error, int) {
        const auto self = weak.lock();
        if (error || !self || !self->is_active()) return;
        self->settle();
        if (self->generation == born) self->watch_orphans();
      });
}

void WorkerGroup::Impl::on_leader_ended(const std::shared_ptr<Worker>& worker) {
  worker->ended_at = Clock::now();
  if (worker->gone) return;
  worker->end_seen = true;
  if (!is_active() && !abandoned) return on_kept_ended(worker);
  if (!take_status(*worker)) return;  // Held by a debugger; settle() tries on the next SIGCHLD.
  const int pid = worker->child.pid();
  report_ended();
  if (!is_active()) return;  // The owner has destroyed the group, or stopped it for good.
  // Anything left of its group? The question is cheap, the look at /proc is not.
  carry_out(state.leader_ended(::kill(-pid, 0) == 0), pid);
  settle();
}

// It was parked, and no attempt runs: its place is filled anew, and what it has started ends now.
void WorkerGroup::Impl::on_kept_ended(const std::shared_ptr<Worker>& worker) {
  worker->child.send_to_group(SIGKILL);
  if (!take_status(*worker)) return;
  workers.erase(std::remove(workers.begin(), workers.end(), worker), workers.end());
  WorkerMembers::kill({}, kept_sessions());
  guard->remove_session(worker->child.pid());
  report_kept(worker);
}

void WorkerGroup::Impl::report_kept(const std::shared_ptr<Worker>& worker) {
  const auto self = shared_from_this();
  spdlog::warn("rank {} (pid {}) ended while it was parked; its place is filled anew",
               worker->spec.rank, worker->child.pid());
  report(*worker, *worker->status, Clock::now(), "it was parked");
  output.drain(*worker->stream);
}

// Those that have ended, or hang up, in this very moment: nobody else looks before they are needed.
void WorkerGroup::Impl::look_at_kept() {
  if (state.active()) return;
  for (const auto& worker : std::vector(workers)) {
    hear(*worker);
    if (worker->channel && !worker->child.has_ended() && !is_exiting(worker->child.pid())) continue;
    end_kept(worker);
    workers.erase(std::remove(workers.begin(), workers.end(), worker), workers.end());
    if (worker->status) report_kept(worker);
  }
}

// Without the event loop, as kill_now().
void WorkerGroup::Impl::end_kept(const std::shared_ptr<Worker>& worker) {
  WorkerMembers::kill({worker->child.pid()}, kept_sessions());
  worker->child.send_to_group(SIGKILL);
  const auto limit = Clock::now() + limits.kill_wait;
  while (!take_status(*worker) && Clock::now() < limit) ::usleep(500);
  worker->ended.reset();
  worker->channel.reset();
  if (worker->child.reaped()) guard->remove_session(worker->child.pid());
}

bool WorkerGroup::Impl::take_status(Worker& worker) {
  if (!worker.status) worker.status = worker.child.reap();
  return worker.status.has_value();
}

// `ended` is reaped. A worker that has not ended counts only while it is about to.
bool WorkerGroup::Impl::ended_earlier(const Worker& other, const Worker& ended) const {
  if (other.gone || !order->began_before(other.index, ended.index, ended.child.pid())) return false;
  return other.status || is_exiting(other.child.pid());
}

GroupMember WorkerGroup::Impl::as_member(const Worker& worker) const {
  const auto& status = worker.status;
  return {.told = worker.gone,
          .reaped = status.has_value(),
          .failed = status && (status->signal != 0 || status->exit_code != 0),
          .stop_sent = worker.stop_sent,
          .asked = worker.asked,
          .can_park = worker.can_park,
          .parked = worker.parked,
          .ended_at = worker.ended_at};
}

// One that is parked before the attempt is over has not left the group.
std::vector<GroupMember> WorkerGroup::Impl::as_members() const {
  std::vector<GroupMember> result;
  for (const auto& worker : workers) {
    result.push_back(as_member(*worker));
    result.back().parked = worker->parked && stays(*worker);
  }
  return result;
}

bool WorkerGroup::Impl::stays(const Worker& worker) const {
  return state.spares(as_member(worker)) && !worker.child.has_ended();
}

int WorkerGroup::Impl::parking() const {
  return static_cast<int>(std::count_if(workers.begin(), workers.end(), [&](const auto& worker) {
    return stays(*worker) && !worker->parked;
  }));
}

int WorkerGroup::Impl::kept() const {
  if (!state.active()) return static_cast<int>(workers.size());
  return static_cast<int>(std::count_if(workers.begin(), workers.end(),
                                        [&](const auto& worker) { return stays(*worker); }));
}

// Reports the workers that were reaped, in the order in which they began to end: one may have died
// of another one's end and still have got through first.
void WorkerGroup::Impl::report_ended() {
  const auto self = shared_from_this();  // The owner may destroy the group in a callback.
  const auto worker = [&](int index) { return workers[static_cast<std::size_t>(index)]; };
  const auto earlier = [&](int other, int ended) {
    return ended_earlier(*worker(other), *worker(ended));
  };
  while (is_active()) {
    const TellStep step = state.next_to_tell(as_members(), earlier, Clock::now());
    if (!step.member) break;
    const auto next = worker(*step.member);
    report(*next, *next->status, next->ended_at, "");
  }
  watch_order();
}

void WorkerGroup::Impl::watch_order() {
  if (watched_order == state.order_deadline()) return;
  watched_order = state.order_deadline();
  if (!watched_order) {
    order_timer.cancel();
    return;
  }
  order_timer.expires_at(*watched_order);
  order_timer.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    const auto group = weak.lock();
    if (!error && group && group->is_active()) group->settle();
  });
}

void WorkerGroup::Impl::report(Worker& worker, const ExitStatus& status, Clock::time_point when,
                               std::string note) {
  assert(!worker.gone);  // on_exit is called once per worker.
  worker.gone = true;
  worker.ended.reset();
  worker.channel.reset();
  if (note.empty() && worker.late) {
    note =
        "it had said that it can park, and did not within " + rendezvous::time_text(state.grace());
  }
  output.pump(*worker.stream);
  WorkerEnd end;
  end.rank = worker.spec.rank;
  end.local_rank = worker.spec.local_rank;
  end.pid = worker.child.pid();
  end.exit_code = status.exit_code;
  end.signal = status.signal;
  end.core_dumped = status.core_dumped;
  end.stopped_by_us = worker.stop_sent;
  end.ran_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(when - worker.started_at).count();
  end.note = std::move(note);
  end.last_stderr = OutputForwarder::last_stderr(*worker.stream);
  end.stderr_tail = OutputForwarder::last_stderr(*worker.stream, INT_MAX);
  end.when = when;
  const auto on_exit = callbacks.on_exit;  // A copy: the owner may destroy the group in it.
  if (on_exit) on_exit(end);
}

void WorkerGroup::Impl::stop(int signal, std::chrono::milliseconds grace, Keep keep,
                             const std::string& why) {
  if (abandoned || (state.killing() && !state.keeping())) return;
  if (!state.active()) {
    if (workers.empty() || keep != Keep::Nobody) return;
    become_active();  // For those that were kept, which nobody needs any more.
  }
  if (spares) spares->attempt_ended();
  // Who has said so by now is spared, also when the end of another was heard of first.
  if (keep != Keep::Nobody) {
    for (const auto& worker : workers) hear(*worker);
  }
  if (!state.keeping()) over_at = Clock::now();
  over_why = why;
  mark_stopped();
  carry_out(state.stop(signal, grace, Clock::now(), keep));
  if (keep != Keep::Nobody) settle_soon();
}

// Some may have parked before. Not in the caller's call, which expects no callbacks.
void WorkerGroup::Impl::settle_soon() {
  asio::post(io, [weak = weak_from_this(), born = generation] {
    const auto self = weak.lock();
    if (!self || !self->is_active() || self->generation != born) return;
    self->tell_parked();
    self->settle();
  });
}

void WorkerGroup::Impl::mark_stopped() {
  for (const auto& worker : workers) {
    // One that has ended by itself is no victim of this stop, though nobody has seen its end yet.
    if (!worker->gone && !worker->child.has_ended()) worker->stop_sent = true;
  }
}

void WorkerGroup::Impl::mark_asked() {
  for (const auto& worker : workers) {
    if (worker->gone || worker->asked || stays(*worker)) continue;
    worker->asked = true;
    if (!state.keeping() || !worker->can_park || worker->child.has_ended()) continue;
    worker->late = true;
    spdlog::warn("rank {} (pid {}) said that it can park, and has not within {}: it gets {}",
                 worker->spec.rank, worker->child.pid(), rendezvous::time_text(state.grace()),
                 rendezvous::signal_name(state.signal()));
  }
}

// Who hears nothing of it is asked when the time is over.
void WorkerGroup::Impl::tell_over() {
  for (const auto& worker : workers) {
    if (worker->told_over || worker->parked || !worker->channel || !stays(*worker)) continue;
    worker->told_over = true;
    send_whole(worker->channel->native_handle(), rendezvous::attempt_over_message(over_why));
  }
}

// `ended_pid`: of the worker that ended just now, for AskIts.
void WorkerGroup::Impl::carry_out(const GroupStep& step, int ended_pid) {
  if (!step.actions.empty()) spdlog::debug("workers: {}", step.reason);
  for (const GroupAction action : step.actions) {
    switch (action) {
      case GroupAction::AskAnew:
        members.forget_asked();
        break;
      case GroupAction::Ask:
        mark_asked();
        members.ask(leaders(), state.signal(), kept_sessions());
        break;
      case GroupAction::AskIts:
        assert(ended_pid > 0);
        members.ask(leaders(), state.signal(), kept_sessions(), ended_pid);
        break;
      case GroupAction::TellOver:
        tell_over();
        break;
      case GroupAction::KillAsked:
        members.kill_asked(leaders(), kept_sessions());
        break;
      case GroupAction::Kill:
        if (running() == kept()) name_leftovers();
        kill_members();
        break;
      case GroupAction::GiveUp:
        return give_up();
      case GroupAction::Finish:
        return finish();
    }
  }
  watch_deadline();
}

// Once for each process: who wonders why a job that was over took so long reads its name.
void WorkerGroup::Impl::name_leftovers() {
  for (const ProcessRow& row : WorkerMembers::of(leaders(), kept_sessions())) {
    if (row.state == 'Z' || !named_leftovers.insert(row.pid).second) continue;
    spdlog::warn("killing pid {} ({}), which a worker left behind and {} did not end", row.pid,
                 row.name, rendezvous::signal_name(state.signal()));
  }
}

void WorkerGroup::Impl::watch_deadline() {
  if (!state.deadline() || watched_deadline == state.deadline()) return;
  watched_deadline = state.deadline();
  deadline_timer.expires_at(*watched_deadline);
  deadline_timer.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    const auto self = weak.lock();
    if (error || !self || !self->is_active()) return;
    self->carry_out(self->state.deadline_passed(Clock::now(), self->parking()));
    self->settle();
  });
}

// SIGKILL was sent long ago. The rest hangs in the kernel: nothing more can be done about it.
void WorkerGroup::Impl::give_up() {
  const auto self = shared_from_this();
  // Nobody is waited for any more; one may have ended just now, and its turn has not come.
  for (const auto& worker : std::vector(workers)) {
    if (worker->gone || !take_status(*worker)) continue;
    report(*worker, *worker->status, worker->end_seen ? worker->ended_at : Clock::now(), "");
  }
  for (const ProcessRow& row : WorkerMembers::of(leaders(), kept_sessions())) {
    if (row.state == 'Z' && !is_spawned_child(row.pid)) continue;
    const std::string where = read_wait_channel(row.pid);
    const std::string note = "pid " + std::to_string(row.pid) + " (" + row.name + ") did not end " +
                             std::to_string(limits.kill_wait.count()) +
                             " ms after SIGKILL, state " + row.state +
                             (where.empty() ? "" : ", in kernel function " + where) +
                             "; this machine may need a restart";
    const auto worker = std::find_if(workers.begin(), workers.end(), [&](const auto& candidate) {
      return candidate->child.pid() == row.pid;
    });
    if (worker == workers.end() || (*worker)->gone) {
      output.write_line("ddprun: " + note);
    } else {
      report(**worker, ExitStatus{0, SIGKILL, false}, Clock::now(), note);
    }
  }
  for (const auto& worker : std::vector(workers)) {  // /proc did not show it.
    if (worker->gone || stays(*worker)) continue;
    report(*worker, ExitStatus{0, SIGKILL, false}, Clock::now(), "");
  }
  finish();
}

// Looks at what is left: reaps adopted orphans, and ends the group when nothing is.
void WorkerGroup::Impl::settle() {
  if (!is_active()) return;
  for (const auto& worker : std::vector(workers)) {
    // One whose end was not seen yet has its turn to come.
    if (!worker->gone && worker->end_seen) take_status(*worker);
  }
  report_ended();
  if (!is_active()) return;
  keep_guard();
  bool left = false;
  // Again after each that is reaped: what it had started is ours from its end on, and the look that
  // found it may have gone past those before.
  for (bool look = true; look;) {
    look = left = false;
    const std::vector<int> adopted = WorkerMembers::adopted_children();
    const std::vector<int> others = WorkerMembers::adopted_children(kept_sessions());
    for (int pid : adopted) {
      if (::waitpid(pid, nullptr, WNOHANG) == pid) {
        look = true;
      } else if (std::find(others.begin(), others.end(), pid) != others.end()) {
        left = true;
      }
    }
  }
  if (is_active()) carry_out(state.looked(ends_of(as_members()), left, Clock::now()));
}

// Called at each SIGCHLD: the guard is a child like any other, and somebody may have killed it. The
// launcher's own death would then leave what the parent-death signal does not reach.
void WorkerGroup::Impl::keep_guard() {
  try {
    if (!guard->replace_if_ended()) return;
    spdlog::warn("the guard process was killed; another one has taken its place");
  } catch (const std::system_error& error) {
    spdlog::warn("the guard process was killed, and there is no other: {}", error.what());
  }
}

void WorkerGroup::Impl::finish() {
  assert(!state.active());
  if (spares) spares->attempt_ended();
  deadline_timer.cancel();
  order_timer.cancel();
  watched_deadline.reset();
  watched_order.reset();
  asio::error_code ignored;
  child_signal.clear(ignored);
  child_signal.cancel(ignored);
  std::vector<std::shared_ptr<Worker>> parked;
  for (const auto& worker : workers) {
    if (!worker->gone) {
      output.pump(*worker->stream);
      parked.push_back(worker);
      continue;
    }
    output.drain(*worker->stream);
    worker->stream.reset();
    worker->ended.reset();
    if (worker->child.reaped()) guard->remove_session(worker->child.pid());
  }
  workers = std::move(parked);
  const auto on_all_reaped = callbacks.on_all_reaped;  // A copy, as in report().
  if (on_all_reaped) on_all_reaped();
}

std::vector<int> WorkerGroup::Impl::leaders() const {
  std::vector<int> pids;
  for (const auto& worker : workers) {
    if (!worker->child.reaped() && !stays(*worker)) pids.push_back(worker->child.pid());
  }
  return pids;
}

// Of those that stay: what they have left behind stays with them.
std::set<int> WorkerGroup::Impl::kept_sessions() const {
  std::set<int> sessions;
  for (const auto& worker : workers) {
    const bool parked = !state.active() && !worker->gone && !worker->status;
    if (parked || stays(*worker)) sessions.insert(worker->child.pid());
  }
  return sessions;
}

void WorkerGroup::Impl::kill_members() {
  for (const auto& worker : workers) {
    if (!stays(*worker)) worker->child.send_to_group(SIGKILL);
  }
  WorkerMembers::kill(leaders(), kept_sessions());
}

// Without the event loop: kills and reaps everything, waiting at most kill_wait.
void WorkerGroup::Impl::kill_now() {
  if (workers.empty()) return;
  const auto limit = Clock::now() + limits.kill_wait;
  for (;;) {
    for (const auto& worker : workers) {
      worker->child.send_to_group(SIGKILL);
      if (!worker->child.reaped()) WorkerMembers::kill({worker->child.pid()});
    }
    WorkerMembers::kill({});
    for (const auto& worker : workers) worker->child.reap();
    bool left = std::any_of(workers.begin(), workers.end(),
                            [](const auto& worker) { return !worker->child.reaped(); });
    for (int pid : WorkerMembers::adopted_children())
      left = ::waitpid(pid, nullptr, WNOHANG) != pid || left;
    if (!left || Clock::now() > limit) break;
    ::usleep(500);
  }
  for (const auto& worker : workers) {
    worker->ended.reset();
    worker->channel.reset();
    if (worker->stream) output.drain(*worker->stream);
    if (guard) guard->remove_session(worker->child.pid());
  }
  workers.clear();
}

int WorkerGroup::Impl::running() const {
  return static_cast<int>(std::count_if(workers.begin(), workers.end(),
                                        [](const auto& worker) { return !worker->gone; }));
}

WorkerGroup::WorkerGroup(asio::io_context& io, OutputForwarder& output,
                         WorkerGroupCallbacks callbacks, WorkerGroupLimits limits)
    : impl_(std::make_shared<Impl>(io, output, std::move(callbacks), limits)) {}

WorkerGroup::~WorkerGroup() {
  impl_->callbacks = {};
  impl_->abandoned = true;
  impl_->kill_now();
  impl_->spares.reset();
}

void WorkerGroup::keep_spares(int spares, SpareEvents events, SpareLimits limits) {
  if (spares <= 0) return;
  impl_->make_spares = [impl = impl_.get(), spares, events = std::move(events), limits] {
    return std::make_unique<SparePool>(impl->io, impl->output, *impl->guard, spares, events,
                                       limits);
  };
}

void WorkerGroup::start(const std::vector<WorkerSpec>& workers,
                        const std::vector<WorkerSpec>& spares) {
  impl_->start(workers, spares);
}

void WorkerGroup::look_at_kept() { impl_->look_at_kept(); }

void WorkerGroup::stop(int signal, std::chrono::milliseconds grace, Keep keep,
                       const std::string& why) {
  impl_->stop(signal, grace, keep, why);
}

int WorkerGroup::kept() const { return impl_->kept(); }

void WorkerGroup::forward_signal(int signal) {
  for (const auto& worker : impl_->workers) worker->child.send(signal);
}

void WorkerGroup::set_temporary_folder(const std::string& path) { impl_->temporary_folder = path; }

void WorkerGroup::stop_spares() {
  if (impl_->spares) impl_->spares->stop();
}

int WorkerGroup::spares_ready() const { return impl_->spares ? impl_->spares->ready() : 0; }

bool WorkerGroup::was_spare(int local_rank) const {
  return std::any_of(impl_->workers.begin(), impl_->workers.end(), [&](const auto& worker) {
    return worker->spec.local_rank == local_rank && worker->was_spare;
  });
}

bool WorkerGroup::was_kept(int local_rank) const {
  return std::any_of(impl_->workers.begin(), impl_->workers.end(), [&](const auto& worker) {
    return worker->spec.local_rank == local_rank && worker->was_kept;
  });
}

int WorkerGroup::running() const { return impl_->running(); }

std::vector<int> WorkerGroup::pids() const {
  std::vector<int> pids;
  for (const auto& worker : impl_->workers) {
    if (!worker->gone) pids.push_back(worker->child.pid());
  }
  return pids;
}

}  // namespace ddprun::launcher
