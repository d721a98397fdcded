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
#include "launcher/workers/worker_group.h"

#include <fcntl.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
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
#include "launcher/workers/worker_members.h"
#include "rendezvous/control/first_cause.h"

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
  bool stop_sent = false;  // stop() has signalled it while it was alive.
  bool end_seen = false;   // The pidfd has become readable, and it was its turn.
  bool gone = false;       // on_exit was called.
  bool was_spare = false;

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
  void start_one(const WorkerSpec& spec, bool may_inherit_stdout);
  void watch(const std::shared_ptr<Worker>& worker);
  void watch_orphans();
  void on_leader_ended(const std::shared_ptr<Worker>& worker);
  bool take_status(Worker& worker);
  bool ended_earlier(const Worker& other, const Worker& ended) const;
  std::vector<GroupMember> as_members() const;
  void report_ended();
  void report(Worker& worker, const ExitStatus& status, Clock::time_point when, std::string note);
  void stop(int signal, std::chrono::milliseconds grace);
  void carry_out(const GroupStep& step, int ended_pid = 0);
  void watch_deadline();
  void watch_order();
  void give_up();
  void settle();
  void keep_guard();
  void finish();
  void kill_now();
  std::vector<int> leaders() const;
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
  std::vector<std::shared_ptr<Worker>> workers;
  WorkerMembers members;
  bool abandoned = false;  // The owner has gone: nothing is told any more.
  int generation = 0;      // Counts start(): a late handler knows it is late.
  std::optional<Clock::time_point> watched_deadline;  // What the timers are set to.
  std::optional<Clock::time_point> watched_order;
};

void WorkerGroup::Impl::start(const std::vector<WorkerSpec>& specs,
                              const std::vector<WorkerSpec>& spare_specs) {
  if (state.active()) throw StartError("the workers of the attempt before have not ended", EBUSY);
  assert(workers.empty());
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (!guard) {
    order = std::make_unique<DeathOrder>(static_cast<int>(specs.size()));
    guard = std::make_unique<ChildGuard>(order->id());
    if (make_spares) spares = make_spares();
  }
  order->reset();
  if (!temporary_folder.empty()) guard->set_temporary_folder(temporary_folder);
  ++generation;
  members.forget_asked();
  const auto writers = std::count_if(
      specs.begin(), specs.end(), [](const WorkerSpec& spec) { return spec.output.out.console; });
  child_signal.add(SIGCHLD);  // Before the first worker: an orphan may die as soon as that runs.
  try {
    for (const WorkerSpec& spec : specs) start_one(spec, writers == 1);
  } catch (...) {
    kill_now();
    throw;
  }
  state.started();
  named_leftovers.clear();
  watch_orphans();
  if (spares) spares->attempt_started(spare_specs);
  if (workers.empty()) asio::post(io, [self = shared_from_this()] { self->settle(); });
}

void WorkerGroup::Impl::start_one(const WorkerSpec& spec, bool may_inherit_stdout) {
  const int index = static_cast<int>(workers.size());
  const DeathMarks marks = index < order->workers() ? order->marks(index) : DeathMarks{};
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
  if (!take_status(*worker)) return;  // Held by a debugger; settle() tries on the next SIGCHLD.
  const int pid = worker->child.pid();
  report_ended();
  if (!is_active()) return;  // The owner has destroyed the group, or stopped it for good.
  // Anything left of its group? The question is cheap, the look at /proc is not.
  carry_out(state.leader_ended(::kill(-pid, 0) == 0), pid);
  settle();
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

std::vector<GroupMember> WorkerGroup::Impl::as_members() const {
  std::vector<GroupMember> result;
  for (const auto& worker : workers) {
    const auto& status = worker->status;
    result.push_back({.told = worker->gone,
                      .reaped = status.has_value(),
                      .failed = status && (status->signal != 0 || status->exit_code != 0),
                      .stop_sent = worker->stop_sent,
                      .ended_at = worker->ended_at});
  }
  return result;
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

void WorkerGroup::Impl::stop(int signal, std::chrono::milliseconds grace) {
  if (!is_active() || state.killing()) return;
  if (spares) spares->attempt_ended();
  for (const auto& worker : workers) {
    // One that has ended by itself is no victim of this stop, though nobody has seen its end yet.
    if (!worker->gone && !worker->child.has_ended()) worker->stop_sent = true;
  }
  carry_out(state.stop(signal, grace, Clock::now()));
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
        members.ask(leaders(), state.signal());
        break;
      case GroupAction::AskIts:
        assert(ended_pid > 0);
        members.ask(leaders(), state.signal(), ended_pid);
        break;
      case GroupAction::Kill:
        if (running() == 0) name_leftovers();
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
  for (const ProcessRow& row : WorkerMembers::of(leaders())) {
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
    self->carry_out(self->state.deadline_passed(Clock::now()));
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
  for (const ProcessRow& row : WorkerMembers::of(leaders())) {
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
    if (!worker->gone) report(*worker, ExitStatus{0, SIGKILL, false}, Clock::now(), "");
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
  const std::vector<int> adopted = WorkerMembers::adopted_children();
  bool left = false;
  for (int pid : adopted) left = ::waitpid(pid, nullptr, WNOHANG) != pid || left;
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
  assert(running() == 0 && !state.active());
  if (spares) spares->attempt_ended();
  deadline_timer.cancel();
  order_timer.cancel();
  watched_deadline.reset();
  watched_order.reset();
  asio::error_code ignored;
  child_signal.clear(ignored);
  child_signal.cancel(ignored);
  for (const auto& worker : workers) {
    output.drain(*worker->stream);
    worker->stream.reset();
    worker->ended.reset();
    if (worker->child.reaped()) guard->remove_session(worker->child.pid());
  }
  workers.clear();
  const auto on_all_reaped = callbacks.on_all_reaped;  // A copy, as in report().
  if (on_all_reaped) on_all_reaped();
}

std::vector<int> WorkerGroup::Impl::leaders() const {
  std::vector<int> pids;
  for (const auto& worker : workers) {
    if (!worker->child.reaped()) pids.push_back(worker->child.pid());
  }
  return pids;
}

void WorkerGroup::Impl::kill_members() {
  for (const auto& worker : workers) worker->child.send_to_group(SIGKILL);
  WorkerMembers::kill(leaders());
}

// Without the event loop: kills and reaps everything, waiting at most kill_wait.
void WorkerGroup::Impl::kill_now() {
  if (workers.empty()) return;
  const auto limit = Clock::now() + limits.kill_wait;
  for (;;) {
    kill_members();
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

void WorkerGroup::stop(int signal, std::chrono::milliseconds grace) { impl_->stop(signal, grace); }

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

int WorkerGroup::running() const { return impl_->running(); }

std::vector<int> WorkerGroup::pids() const {
  std::vector<int> pids;
  for (const auto& worker : impl_->workers) {
    if (!worker->gone) pids.push_back(worker->child.pid());
  }
  return pids;
}

}  // namespace ddprun::launcher
