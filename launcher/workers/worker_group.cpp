// The end of a worker, and of all that it leaves behind, as events of one loop:
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
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>
#include <system_error>

#include "launcher/workers/child_guard.h"
#include "launcher/workers/child_launch.h"
#include "launcher/workers/child_process.h"
#include "launcher/workers/worker_members.h"

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
        child_signal(io),
        deadline_timer(io),
        order_timer(io) {}

  void start(const std::vector<WorkerSpec>& specs);
  void start_one(const WorkerSpec& spec, bool may_inherit_stdout);
  void watch(const std::shared_ptr<Worker>& worker);
  void watch_orphans();
  void on_leader_ended(const std::shared_ptr<Worker>& worker);
  bool take_status(Worker& worker);
  bool ended_earlier(const Worker& other, const Worker& ended) const;
  std::shared_ptr<Worker> next_ended(bool wait, bool& kept_back) const;
  void report_ended();
  void report(Worker& worker, const ExitStatus& status, Clock::time_point when, std::string note);
  void stop(int signal, std::chrono::milliseconds grace);
  void set_deadline(Clock::time_point when);
  void on_deadline();
  void give_up();
  void settle();
  void finish();
  void kill_now();
  std::vector<int> leaders() const;
  void kill_members();
  int running() const;

  asio::io_context& io;
  OutputForwarder& output;
  WorkerGroupCallbacks callbacks;
  WorkerGroupLimits limits;
  asio::signal_set child_signal;
  asio::steady_timer deadline_timer;
  asio::steady_timer order_timer;  // How long a worker's end is kept back for an earlier one's.
  std::unique_ptr<DeathOrder> order;
  std::unique_ptr<ChildGuard> guard;
  std::string temporary_folder;  // For the guard.
  std::vector<std::shared_ptr<Worker>> workers;
  bool active = false;        // Between start() and on_all_reaped.
  int stop_signal = SIGTERM;  // How processes are asked to end.
  WorkerMembers members;
  bool killing = false;                       // SIGKILL is out.
  int generation = 0;                         // Counts start(): a late handler knows it is late.
  std::optional<Clock::time_point> deadline;  // Of the grace, or of kill_wait when killing.
  std::optional<Clock::time_point> order_deadline;  // Set while a worker is kept back.
};

void WorkerGroup::Impl::start(const std::vector<WorkerSpec>& specs) {
  if (active) throw StartError("the workers of the attempt before have not ended", EBUSY);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (!guard) {
    order = std::make_unique<DeathOrder>(static_cast<int>(specs.size()));
    guard = std::make_unique<ChildGuard>(order->id());
  }
  order->reset();
  if (!temporary_folder.empty()) guard->set_temporary_folder(temporary_folder);
  ++generation;
  stop_signal = SIGTERM;
  members.forget_asked();
  killing = false;
  deadline.reset();
  order_deadline.reset();
  const auto writers = std::count_if(
      specs.begin(), specs.end(), [](const WorkerSpec& spec) { return spec.output.out.console; });
  child_signal.add(SIGCHLD);  // Before the first worker: an orphan may die as soon as that runs.
  try {
    for (const WorkerSpec& spec : specs) start_one(spec, writers == 1);
  } catch (...) {
    kill_now();
    throw;
  }
  active = true;
  watch_orphans();
  if (workers.empty()) asio::post(io, [self = shared_from_this()] { self->settle(); });
}

void WorkerGroup::Impl::start_one(const WorkerSpec& spec, bool may_inherit_stdout) {
  const int index = static_cast<int>(workers.size());
  const DeathMarks marks = index < order->workers() ? order->marks(index) : DeathMarks{};
  LaunchedChild launched = launch_child(spec, output, guard->variable(), may_inherit_stdout, marks);
  auto worker = std::make_shared<Worker>(std::move(launched.process));
  worker->spec = spec;
  worker->index = index;
  worker->stream = std::move(launched.stream);
  worker->started_at = Clock::now();
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
  if (!active) return;
  child_signal.async_wait(
      [weak = weak_from_this(), born = generation](const asio::error_code& error, int) {
        const auto self = weak.lock();
        if (error || !self || !self->active) return;
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
  // Anything left of its group? The question is cheap, the look at /proc is not.
  if (active && !killing && ::kill(-pid, 0) == 0) members.ask(leaders(), stop_signal, pid);
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

// The next to report of those that were reaped; `kept_back` says that one waits for another worker
// that began to end earlier and has not got through yet.
std::shared_ptr<Worker> WorkerGroup::Impl::next_ended(bool wait, bool& kept_back) const {
  std::shared_ptr<Worker> next;
  kept_back = false;
  for (const auto& ended : workers) {
    if (ended->gone || !ended->status) continue;
    const bool failed = ended->status->signal != 0 || ended->status->exit_code != 0;
    const bool after_another = failed && !ended->stop_sent &&
                               std::any_of(workers.begin(), workers.end(), [&](const auto& other) {
                                 return (wait || other->status) && ended_earlier(*other, *ended);
                               });
    kept_back = kept_back || after_another;
    if (!after_another && (!next || ended->ended_at < next->ended_at)) next = ended;
  }
  return next;
}

// Reports the workers that were reaped, in the order in which they began to end: one may have died
// of another one's end and still have got through first.
void WorkerGroup::Impl::report_ended() {
  const auto self = shared_from_this();  // The owner may destroy the group in a callback.
  const bool wait = !order_deadline || Clock::now() < *order_deadline;
  bool kept_back = false;
  while (const auto next = next_ended(wait, kept_back)) {
    report(*next, *next->status, next->ended_at, "");
  }
  if (!kept_back) return order_deadline.reset();
  if (order_deadline) return;  // The timer runs.
  order_deadline = Clock::now() + limits.order_wait;
  order_timer.expires_at(*order_deadline);
  order_timer.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    const auto group = weak.lock();
    if (!error && group && group->active) group->settle();
  });
}

void WorkerGroup::Impl::report(Worker& worker, const ExitStatus& status, Clock::time_point when,
                               std::string note) {
  worker.gone = true;
  worker.ended.reset();
  output.pump(*worker.stream);
  WorkerExit exit;
  exit.local_rank = worker.spec.local_rank;
  exit.rank = worker.spec.rank;
  exit.pid = worker.child.pid();
  exit.exit_code = status.exit_code;
  exit.signal = status.signal;
  exit.core_dumped = status.core_dumped;
  exit.stopped_by_us = worker.stop_sent;
  exit.when = when;
  exit.ran_for = when - worker.started_at;
  exit.last_stderr = OutputForwarder::last_stderr(*worker.stream);
  exit.stderr_tail = OutputForwarder::last_stderr(*worker.stream, INT_MAX);
  exit.note = std::move(note);
  const auto on_exit = callbacks.on_exit;  // A copy: the owner may destroy the group in it.
  if (on_exit) on_exit(exit);
}

void WorkerGroup::Impl::stop(int signal, std::chrono::milliseconds grace) {
  if (!active || killing) return;
  for (const auto& worker : workers) {
    // One that has ended by itself is no victim of this stop, though nobody has seen its end yet.
    if (!worker->gone && !worker->child.has_ended()) worker->stop_sent = true;
  }
  if (grace.count() > 0) {
    if (signal != stop_signal) members.forget_asked();
    stop_signal = signal;
    members.ask(leaders(), signal);
  }
  // A second stop may shorten the grace, and never gives more of it.
  set_deadline(std::min(deadline.value_or(Clock::time_point::max()), Clock::now() + grace));
}

void WorkerGroup::Impl::set_deadline(Clock::time_point when) {
  deadline = when;
  deadline_timer.expires_at(when);
  deadline_timer.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    const auto self = weak.lock();
    if (!error && self && self->active) self->on_deadline();
  });
}

void WorkerGroup::Impl::on_deadline() {
  if (!deadline) return;
  if (!killing) {
    killing = true;
    kill_members();
    set_deadline(Clock::now() + limits.kill_wait);
  } else {
    give_up();
  }
}

// SIGKILL was sent long ago. The rest hangs in the kernel: nothing more can be done about it.
void WorkerGroup::Impl::give_up() {
  order_deadline = Clock::now();
  report_ended();
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
  finish();
}

// Looks at what is left: reaps adopted orphans, and ends the group when nothing is.
void WorkerGroup::Impl::settle() {
  if (!active) return;
  for (const auto& worker : std::vector(workers)) {
    // One whose end was not seen yet has its turn to come.
    if (!worker->gone && worker->end_seen) take_status(*worker);
  }
  report_ended();
  const std::vector<int> adopted = WorkerMembers::adopted_children();
  bool left = false;
  for (int pid : adopted) left = ::waitpid(pid, nullptr, WNOHANG) != pid || left;
  if (!active || running() > 0) return;
  if (!left) return finish();
  // An orphan may have been born since the last look.
  if (killing) return kill_members();
  members.ask(leaders(), stop_signal);
  if (!deadline) set_deadline(Clock::now() + limits.leftover_grace);
}

void WorkerGroup::Impl::finish() {
  active = false;
  deadline_timer.cancel();
  order_timer.cancel();
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
  impl_->active = false;
  impl_->kill_now();
}

void WorkerGroup::start(const std::vector<WorkerSpec>& workers) { impl_->start(workers); }

void WorkerGroup::stop(int signal, std::chrono::milliseconds grace) { impl_->stop(signal, grace); }

void WorkerGroup::forward_signal(int signal) {
  for (const auto& worker : impl_->workers) worker->child.send(signal);
}

void WorkerGroup::set_temporary_folder(const std::string& path) { impl_->temporary_folder = path; }

int WorkerGroup::running() const { return impl_->running(); }

std::vector<int> WorkerGroup::pids() const {
  std::vector<int> pids;
  for (const auto& worker : impl_->workers) {
    if (!worker->gone) pids.push_back(worker->child.pid());
  }
  return pids;
}

}  // namespace ddprun::launcher
