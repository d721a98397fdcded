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
// A worker's end is told before its process is gone (life_watch.h), and where another attempt
// follows one that leaves only memory is not waited for (ending_workers.h).
// A worker that is parked (rendezvous/contract/spare_channel.h) is left out of this, and is among
// the kept ones (kept_workers.h) until the next start().
#include "launcher/workers/worker_group.h"

#include <fmt/format.h>
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
#include <chrono>
#include <climits>
#include <optional>
#include <set>
#include <system_error>

#include "launcher/processes/child_guard.h"
#include "launcher/processes/child_process.h"
#include "launcher/processes/worker_members.h"
#include "launcher/workers/attempt_workers.h"
#include "launcher/workers/child_launch.h"
#include "launcher/workers/ending_workers.h"
#include "launcher/workers/group_state.h"
#include "launcher/workers/kept_workers.h"
#include "launcher/workers/worker_process.h"
#include "rendezvous/control/first_cause.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {

namespace {
using Clock = std::chrono::steady_clock;
}  // namespace

struct WorkerGroup::Impl : std::enable_shared_from_this<Impl> {
  Impl(asio::io_context& io_context, OutputForwarder& forwarder, WorkerGroupCallbacks handlers,
       const WorkerGroupLimits& group_limits)
      : io(io_context),
        output(forwarder),
        callbacks(std::move(handlers)),
        limits(group_limits),
        state(group_limits),
        child_signal(io),
        deadline_timer(io),
        order_timer(io),
        workers(state),
        kept_workers(forwarder, members, ending_workers, group_limits.kept_kill_wait),
        ending_workers(forwarder) {}

  void start(const std::vector<WorkerSpec>& specs, const std::vector<WorkerSpec>& spare_specs);
  void stand_by(const std::vector<WorkerSpec>& spare_specs);
  void make_guard(int count);
  void start_one(const WorkerSpec& spec, bool may_inherit_stdout);
  void become_active();
  void watch(const std::shared_ptr<WorkerProcess>& worker);
  void watch_channel(const std::shared_ptr<WorkerProcess>& worker);
  void hear(WorkerProcess& worker);
  void hang_up(WorkerProcess& worker);
  void tell_parked();
  void settle_soon();
  void on_kept_ended(const std::shared_ptr<WorkerProcess>& worker);
  void report_kept(const std::shared_ptr<WorkerProcess>& worker);
  void look_at_kept();
  void watch_orphans();
  void on_leader_ended(const std::shared_ptr<WorkerProcess>& worker);
  void on_freed();
  void on_ending(int pid);
  bool ended_earlier(const WorkerProcess& other, const WorkerProcess& ended) const;
  void report_ended();
  void report(WorkerProcess& worker, const ExitStatus& status, Clock::time_point when,
              std::string note);
  void stop(int signal, std::chrono::milliseconds grace, Keep keep, const std::string& why);
  void carry_out(const GroupStep& step, int ended_pid = 0);
  void watch_deadline();
  void watch_order();
  void give_up();
  void settle();
  void keep_guard();
  void finish(bool given_up);
  void kill_now();
  std::vector<int> leaders() const;
  std::set<int> other_sessions() const;
  std::set<int> kept_sessions() const;
  int kept() const;
  void kill_members();
  void name_leftovers();
  bool is_being_freed();
  int running() const;
  bool is_active() const { return state.active() && !abandoned; }

  asio::io_context& io;
  OutputForwarder& output;
  WorkerGroupCallbacks callbacks;
  WorkerGroupLimits limits;
  GroupState state;
  asio::signal_set child_signal;
  asio::steady_timer deadline_timer;
  asio::steady_timer order_timer;  // How long a worker's end is kept back.
  std::unique_ptr<DeathOrder> order;
  std::unique_ptr<ChildGuard> guard;
  std::function<std::unique_ptr<SparePool>()> make_spares;  // Set where some are wanted.
  std::unique_ptr<SparePool> spares;                        // Goes before the guard.
  int places = 0;                                           // For which it has some, if need be.
  LeftBehind left_behind;                                   // For the guard.
  std::set<int> named_leftovers;                            // Of this attempt.
  WorkerMembers members;                                    // All processes that workers have.
  AttemptWorkers workers;                                   // Of this attempt.
  KeptWorkers kept_workers;                                 // Of the one before, while none runs.
  EndingWorkers ending_workers;                             // Of the one before; being freed.
  std::string over_why;                                     // For those who can park ...
  Clock::time_point over_at;                                // ... since then.
  bool abandoned = false;  // The owner has gone: nothing is told any more.
  int generation = 0;      // Counts start(): a late handler knows it is late.
  std::optional<Clock::time_point> watched_deadline;  // What the timers are set to.
  std::optional<Clock::time_point> watched_order;
};

void WorkerGroup::Impl::start(const std::vector<WorkerSpec>& specs,
                              const std::vector<WorkerSpec>& spare_specs) {
  if (state.active()) throw StartError("the workers of the attempt before have not ended", EBUSY);
  make_guard(static_cast<int>(specs.size()));
  order->reset();
  const auto writers = std::count_if(
      specs.begin(), specs.end(), [](const WorkerSpec& spec) { return spec.output.out.console; });
  child_signal.add(SIGCHLD);  // Before the first worker: an orphan may die as soon as that runs.
  workers.clear();
  guard->wait_until_it_runs();
  try {
    for (const WorkerSpec& spec : specs) start_one(spec, writers == 1);
  } catch (...) {
    kill_now();
    throw;
  }
  kept_workers.end_all(*guard, other_sessions());
  become_active();
  if (spares) spares->attempt_started(spare_specs, workers.missing_places(places));
  if (workers.empty()) asio::post(io, [self = shared_from_this()] { self->settle(); });
}

void WorkerGroup::Impl::stand_by(const std::vector<WorkerSpec>& spare_specs) {
  if (state.active() || !make_spares) return;
  make_guard(static_cast<int>(spare_specs.size()));
  guard->wait_until_it_runs();
  spares->attempt_started(spare_specs);
}

// `count`: of workers. Who is beyond it has no mark of when it died.
void WorkerGroup::Impl::make_guard(int count) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (!guard) {
    order = std::make_unique<DeathOrder>(count);
    guard = std::make_unique<ChildGuard>(order->id());
    members.know(*guard);
    if (make_spares) spares = make_spares();
  }
  keep_guard();  // Between two attempts nobody hears of its end.
  guard->set_left_behind(left_behind);
}

// SIGCHLD may have been asked for before: asio takes that as done.
void WorkerGroup::Impl::become_active() {
  ++generation;
  members.attempt_starts();
  named_leftovers.clear();
  child_signal.add(SIGCHLD);
  state.started();
  watch_orphans();
}

void WorkerGroup::Impl::start_one(const WorkerSpec& spec, bool may_inherit_stdout) {
  const int index = workers.count();
  const DeathMarks marks = index < order->workers() ? order->marks(index) : DeathMarks{};
  if (auto kept = kept_workers.take(spec, marks, *guard, other_sessions())) {
    workers.add(std::move(kept));
    return;
  }
  std::optional<LaunchedChild> spare = spares ? spares->take(spec, marks) : std::nullopt;
  const bool was_spare = spare.has_value();
  auto worker = std::make_shared<WorkerProcess>(
      was_spare ? std::move(*spare)
                : launch_child(spec, output, guard->variable(), may_inherit_stdout, marks),
      spec);
  worker->was_spare = was_spare;
  guard->add_session(worker->child.pid());
  workers.add(worker);
  try {
    worker->open(io);
  } catch (const std::system_error& error) {  // Out of descriptors.
    throw start_error(spec.local_rank, error);
  }
  // Now, not after the last start: epoll tells in which order they die from here on.
  watch(worker);
  if (worker->channel) watch_channel(worker);
}

void WorkerGroup::Impl::watch(const std::shared_ptr<WorkerProcess>& worker) {
  worker->ended->async_wait(asio::posix::stream_descriptor::wait_read,
                            [weak = weak_from_this(), worker](const asio::error_code& error) {
                              const auto self = weak.lock();
                              if (!error && self) self->on_leader_ended(worker);
                            });
}

void WorkerGroup::Impl::watch_channel(const std::shared_ptr<WorkerProcess>& worker) {
  worker->channel->async_wait(asio::posix::stream_descriptor::wait_read,
                              [weak = weak_from_this(), worker](const asio::error_code& error) {
                                const auto self = weak.lock();
                                if (error || !self || worker->gone || !worker->channel) return;
                                self->hear(*worker);
                                if (worker->channel) self->watch_channel(worker);
                                if (!self->is_active() || !worker->parking.parked()) return;
                                if (!self->state.keeping() && self->callbacks.on_left) {
                                  self->callbacks.on_left(worker->spec.local_rank);
                                }
                                self->tell_parked();
                                self->settle();
                              });
}

void WorkerGroup::Impl::hear(WorkerProcess& worker) {
  if (worker.channel && !worker.hear()) hang_up(worker);
}

void WorkerGroup::Impl::tell_parked() {
  const auto self = shared_from_this();
  const auto now = Clock::now();
  for (const auto& worker : std::vector(workers.processes())) {
    if (!workers.stays(*worker) || !worker->parking.take_news()) continue;
    if (!callbacks.on_parked) continue;
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(now - over_at);
    callbacks.on_parked(worker->spec.rank, worker->spec.local_rank, worker->child.pid(),
                        took.count());
  }
}

// It cannot be given a rank any more. It may be about to end, too.
void WorkerGroup::Impl::hang_up(WorkerProcess& worker) {
  worker.channel.reset();
  const bool was_parked = worker.parking.hang_up();
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

void WorkerGroup::Impl::on_leader_ended(const std::shared_ptr<WorkerProcess>& worker) {
  if (ending_workers.has(worker)) return on_freed();
  if (worker->gone && !worker->is_ending()) return;
  if (!worker->is_ending()) worker->ended_at = Clock::now();
  worker->end_seen = true;
  if (!is_active() && !abandoned) return on_kept_ended(worker);
  if (!worker->take_status()) return;  // Held by a debugger; settle() tries on the next SIGCHLD.
  const int pid = worker->child.pid();
  report_ended();
  if (!is_active()) return;  // The owner has destroyed the group, or stopped it for good.
  // Anything left of its group? The question is cheap, the look at /proc is not.
  carry_out(state.leader_ended(::kill(-pid, 0) == 0), pid);
  settle();
}

// One that cannot be reaped, since a debugger holds it, has its turn at the next SIGCHLD.
void WorkerGroup::Impl::on_freed() {
  ending_workers.reap(*guard);
  settle();
}

// What is left to do with it when it can be reaped is on_leader_ended()'s.
void WorkerGroup::Impl::on_ending(int pid) {
  if (!is_active()) return;
  const auto worker = workers.of_pid(pid);
  if (!worker || worker->gone || !worker->foresee_status()) return;
  worker->ended_at = Clock::now();
  report_ended();
  if (state.another_follows()) settle();
}

// It was parked, and no attempt runs: its place is filled anew, and what it has started ends now.
void WorkerGroup::Impl::on_kept_ended(const std::shared_ptr<WorkerProcess>& worker) {
  if (kept_workers.take_ended(worker, *guard, other_sessions())) report_kept(worker);
}

void WorkerGroup::Impl::report_kept(const std::shared_ptr<WorkerProcess>& worker) {
  const auto self = shared_from_this();
  spdlog::warn("rank {} (pid {}) ended while it was parked; its place is filled anew",
               worker->spec.rank, worker->child.pid());
  report(*worker, *worker->status, Clock::now(), "it was parked");
  if (worker->child.reaped()) output.drain(*worker->stream);  // Else when it can be.
}

// Those that have ended, or hang up, in this very moment: nobody else looks before they are needed.
void WorkerGroup::Impl::look_at_kept() {
  if (state.active() || !guard) return;
  for (const auto& worker : kept_workers.take_ended(*guard, other_sessions())) report_kept(worker);
}

// A worker that has not ended counts only while it is about to. What the kernel notes of the order
// it has noted when `ended` is reaped; until then whoever is ending as well may have been the
// first.
bool WorkerGroup::Impl::ended_earlier(const WorkerProcess& other,
                                      const WorkerProcess& ended) const {
  if (ended.is_ending()) return !other.gone && is_exiting(other.child.pid());
  if (other.gone || !order->began_before(other.index, ended.index, ended.child.pid())) return false;
  return other.status || is_exiting(other.child.pid());
}

// Reports the workers that were reaped, in the order in which they began to end: one may have died
// of another one's end and still have got through first.
void WorkerGroup::Impl::report_ended() {
  const auto self = shared_from_this();  // The owner may destroy the group in a callback.
  const auto earlier = [&](int other, int ended) {
    return ended_earlier(*workers.at(other), *workers.at(ended));
  };
  while (is_active()) {
    const TellStep step = state.next_to_tell(workers.as_members(), earlier, Clock::now());
    if (!step.member) break;
    const auto next = workers.at(*step.member);
    report(*next, *next->status, next->ended_at, "");
  }
  watch_order();
}

void WorkerGroup::Impl::watch_order() {
  if (watched_order == state.tell_deadline()) return;
  watched_order = state.tell_deadline();
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

void WorkerGroup::Impl::report(WorkerProcess& worker, const ExitStatus& status,
                               Clock::time_point when, std::string note) {
  assert(!worker.gone);  // on_exit is called once per worker.
  worker.gone = true;
  if (!worker.is_ending()) worker.close();  // Else its pidfd tells when it can be reaped.
  if (note.empty() && worker.parking.late()) {
    note =
        "it had said that it can park, and did not within " + rendezvous::time_text(state.grace());
  }
  output.pump(*worker.stream);
  const WorkerEnd end = worker.end(status, when, std::move(note));
  const auto on_exit = callbacks.on_exit;  // A copy: the owner may destroy the group in it.
  if (on_exit) on_exit(end);
}

void WorkerGroup::Impl::stop(int signal, std::chrono::milliseconds grace, Keep keep,
                             const std::string& why) {
  if (abandoned || (state.killing() && !state.keeping())) return;
  if (!state.active()) {
    if (kept_workers.empty() || keep != Keep::Nobody) return;
    workers.replace(kept_workers.release());  // Nobody needs them any more.
    become_active();
  }
  if (spares) spares->attempt_ended();
  // Who has said so by now is spared, also when the end of another was heard of first.
  if (keep != Keep::Nobody) {
    for (const auto& worker : workers.processes()) hear(*worker);
  }
  if (!state.keeping()) over_at = Clock::now();
  over_why = why;
  workers.mark_stopped();
  carry_out(state.stop(signal, grace, Clock::now(), keep));
  if (keep != Keep::Nobody || state.tell_deadline()) settle_soon();
}

// Some may have parked before, or have ended and not been told. Not in the caller's call, which
// expects no callbacks.
void WorkerGroup::Impl::settle_soon() {
  asio::post(io, [weak = weak_from_this(), born = generation] {
    const auto self = weak.lock();
    if (!self || !self->is_active() || self->generation != born) return;
    self->tell_parked();
    self->settle();
  });
}

// `ended_pid`: of the worker that ended just now, for AskIts.
void WorkerGroup::Impl::carry_out(const GroupStep& step, int ended_pid) {
  if (!step.actions.empty()) spdlog::debug("workers: {}", step.reason);
  for (const GroupAction action : step.actions) {
    switch (action) {
      case GroupAction::AskAnew:
        members.ask_anew();
        break;
      case GroupAction::Ask:
        workers.mark_asked();
        members.ask(leaders(), state.signal(), kept_sessions());
        break;
      case GroupAction::AskIts:
        assert(ended_pid > 0);
        members.ask(leaders(), state.signal(), kept_sessions(), ended_pid);
        break;
      case GroupAction::TellOver:
        workers.tell_over(over_why);
        break;
      case GroupAction::KillAsked:
        workers.warn_of_kill();
        members.kill_asked(leaders(), kept_sessions());
        break;
      case GroupAction::Kill:
        if (running() == kept()) name_leftovers();
        workers.warn_of_kill();
        kill_members();
        break;
      case GroupAction::SayWait:
        spdlog::warn("waiting for the kernel to free the memory and devices of what was killed");
        break;
      case GroupAction::GiveUp:
        return give_up();
      case GroupAction::Finish:
        return finish(/*given_up=*/false);
    }
  }
  watch_deadline();
}

// Once for each process: who wonders why a job that was over took so long reads its name.
void WorkerGroup::Impl::name_leftovers() {
  for (const ProcessRow& row : members.of(leaders(), kept_sessions())) {
    if (row.state == 'Z' || is_guard(row)) continue;  // A guard is not killed.
    if (!named_leftovers.insert(row.pid).second) continue;
    spdlog::warn("killing pid {} ({}), which a worker left behind and {} did not end", row.pid,
                 row.name, rendezvous::signal_name(state.signal()));
  }
}

// Whether the kernel has begun to take apart all that is left: that takes its time, and does end.
// A zombie, which somebody holds, has nothing left to free, and a guard waits for the same as we.
bool WorkerGroup::Impl::is_being_freed() {
  bool any = false;
  for (const ProcessRow& row : members.of(leaders(), kept_sessions())) {
    if (row.state == 'Z' || is_guard(row)) continue;
    if (!is_exiting(row.pid)) return false;
    any = true;
  }
  return any;
}

void WorkerGroup::Impl::watch_deadline() {
  if (!state.deadline() || watched_deadline == state.deadline()) return;
  watched_deadline = state.deadline();
  deadline_timer.expires_at(*watched_deadline);
  deadline_timer.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    const auto self = weak.lock();
    if (error || !self || !self->is_active()) return;
    self->carry_out(self->state.deadline_passed(Clock::now(), self->workers.parking(),
                                                self->state.killing() && self->is_being_freed()));
    self->settle();
  });
}

// SIGKILL was sent long ago. The rest hangs in the kernel: nothing more can be done about it.
void WorkerGroup::Impl::give_up() {
  const auto self = shared_from_this();
  // Nobody is waited for any more; one may have ended just now, and its turn has not come.
  for (const auto& worker : std::vector(workers.processes())) {
    if (worker->gone || !worker->take_status()) continue;
    report(*worker, *worker->status, worker->end_seen ? worker->ended_at : Clock::now(), "");
  }
  const std::string since_kill = rendezvous::time_text(
      std::chrono::round<std::chrono::milliseconds>(Clock::now() - state.killed_at()));
  members.kill_guards(leaders(), kept_sessions());
  for (const ProcessRow& row : members.of(leaders(), kept_sessions())) {
    if (is_guard(row)) {
      spdlog::warn(
          "killing pid {} ({}), which a worker left behind and which did not end by itself",
          row.pid, row.name);
      continue;
    }
    if (row.state == 'Z' && !is_spawned_child(row.pid)) continue;
    const std::string where = read_wait_channel(row.pid);
    const std::string note = fmt::format(
        "pid {} ({}) did not end in the {} since SIGKILL, state {}{}; this machine may "
        "need a restart",
        row.pid, row.name, since_kill, row.state,
        where.empty() ? "" : ", in kernel function " + where);
    const auto worker = workers.of_pid(row.pid);
    if (!worker || worker->gone) {
      output.write_line("ddprun: " + note);
    } else {
      report(*worker, ExitStatus{0, SIGKILL, false}, Clock::now(), note);
    }
  }
  for (const auto& worker : std::vector(workers.processes())) {  // /proc did not show it.
    if (worker->gone || workers.stays(*worker)) continue;
    report(*worker, ExitStatus{0, SIGKILL, false}, Clock::now(), "");
  }
  finish(/*given_up=*/true);
}

// Looks at what is left: reaps adopted orphans, and ends the group when nothing is.
void WorkerGroup::Impl::settle() {
  if (!is_active()) return;
  for (const auto& worker : std::vector(workers.processes())) {
    // One whose end was not seen yet has its turn to come.
    const bool awaited = !worker->gone || worker->is_ending();
    if (awaited && worker->end_seen) worker->take_status();
    if (state.another_follows() && worker->is_ending()) worker->look_at_leavings();
  }
  report_ended();
  if (!is_active()) return;
  keep_guard();
  ending_workers.reap(*guard);
  bool left = false;
  // Again after each that is reaped: what it had started is ours from its end on, and the look that
  // found it may have gone past those before.
  for (bool look = true; look;) {
    look = left = false;
    const std::vector<int> adopted = WorkerMembers::adopted_children();
    const std::vector<int> ours = members.left_behind(adopted, kept_sessions());
    for (const int pid : adopted) {
      if (::waitpid(pid, nullptr, WNOHANG) == pid) {
        members.forget(pid);
        look = true;
      } else if (std::find(ours.begin(), ours.end(), pid) != ours.end()) {
        left =
            left || !state.another_follows() || !WorkerMembers::outlives_workers(read_process(pid));
      }
    }
  }
  // The dead of the attempt before are waited for at this one's end at the latest: one that hangs
  // in the kernel is named then.
  left = left || !ending_workers.empty();
  if (is_active()) carry_out(state.looked(ends_of(workers.as_members()), left, Clock::now()));
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

void WorkerGroup::Impl::finish(bool given_up) {
  assert(!state.active());
  if (spares) spares->attempt_ended();
  deadline_timer.cancel();
  order_timer.cancel();
  watched_deadline.reset();
  watched_order.reset();
  asio::error_code ignored;
  child_signal.clear(ignored);
  child_signal.cancel(ignored);
  if (given_up) ending_workers.release();
  for (const auto& worker : workers.release()) {
    if (!worker->gone) {
      output.pump(*worker->stream);
      kept_workers.keep(worker);
      continue;
    }
    if (worker->is_ending() && !given_up) {
      ending_workers.add(worker);
      continue;
    }
    output.drain(*worker->stream);
    worker->stream.reset();
    worker->ended.reset();
    if (worker->child.reaped()) guard->remove_session(worker->child.pid());
  }
  const auto on_all_reaped = callbacks.on_all_reaped;  // A copy, as in report().
  if (on_all_reaped) on_all_reaped();
}

// Of all that is to end with the attempt.
std::vector<int> WorkerGroup::Impl::leaders() const {
  std::vector<int> pids = workers.leaders();
  const std::vector<int> freed = ending_workers.pids();
  pids.insert(pids.end(), freed.begin(), freed.end());
  return pids;
}

// Spares among them: what they have started ends with them, and not with the attempt.
std::set<int> WorkerGroup::Impl::kept_sessions() const {
  std::set<int> sessions = other_sessions();
  sessions.merge(kept_workers.sessions());
  return sessions;
}

// Of all whose leavings stay but the kept ones.
std::set<int> WorkerGroup::Impl::other_sessions() const {
  std::set<int> sessions = workers.kept_sessions();
  if (spares) sessions.merge(spares->sessions());
  return sessions;
}

int WorkerGroup::Impl::kept() const {
  return state.active() ? workers.staying() : kept_workers.count();
}

void WorkerGroup::Impl::kill_members() {
  workers.kill_all_but_staying();
  members.kill(leaders(), kept_sessions());
}

// Without the event loop: kills and reaps everything, waiting at most kill_wait.
void WorkerGroup::Impl::kill_now() {
  std::vector<std::shared_ptr<WorkerProcess>> all = workers.release();
  for (const auto& worker : kept_workers.release()) all.push_back(worker);
  for (const auto& worker : ending_workers.release()) all.push_back(worker);
  if (all.empty()) return;
  const auto limit = Clock::now() + limits.kill_wait;
  for (;;) {
    const std::set<int> stay = kept_sessions();  // Spares alone by now.
    for (const auto& worker : all) {
      worker->child.send_to_group(SIGKILL);
      if (!worker->child.reaped()) members.kill({worker->child.pid()}, stay);
    }
    members.kill({}, stay);
    for (const auto& worker : all) worker->child.reap();
    bool left = std::any_of(all.begin(), all.end(),
                            [](const auto& worker) { return !worker->child.reaped(); });
    for (int pid : members.left_behind(WorkerMembers::adopted_children(), stay))
      left = ::waitpid(pid, nullptr, WNOHANG) != pid || left;
    if (!left) break;
    if (Clock::now() > limit) {
      members.kill_guards({}, stay);
      break;
    }
    ::usleep(500);
  }
  for (const auto& worker : all) {
    worker->close();
    if (worker->stream) output.drain(*worker->stream);
    if (guard) guard->remove_session(worker->child.pid());
  }
}

int WorkerGroup::Impl::running() const { return workers.running() + kept_workers.count(); }

WorkerGroup::WorkerGroup(asio::io_context& io, OutputForwarder& output,
                         WorkerGroupCallbacks callbacks, const WorkerGroupLimits& limits)
    : impl_(std::make_shared<Impl>(io, output, std::move(callbacks), limits)) {}

WorkerGroup::~WorkerGroup() {
  impl_->callbacks = {};
  impl_->abandoned = true;
  impl_->kill_now();
  impl_->spares.reset();
}

void WorkerGroup::keep_spares(int spares, int places, SpareEvents events, SpareLimits limits) {
  if (spares <= 0 && places <= 0) return;
  impl_->places = places;
  impl_->make_spares = [impl = impl_.get(), spares, places, events = std::move(events), limits] {
    return std::make_unique<SparePool>(impl->io, impl->output, *impl->guard, spares, places, events,
                                       limits);
  };
}

std::vector<LocalPlace> WorkerGroup::places(int count) const {
  std::vector<LocalPlace> result;
  for (int place = 0; place < count; ++place) {
    const bool spare = impl_->spares && place < impl_->places;
    result.push_back({.kept = impl_->kept_workers.has(place),
                      .spare = spare && impl_->spares->is_ready(place),
                      .no_hope = !spare || impl_->spares->has_given_up(place)});
  }
  return result;
}

void WorkerGroup::start(const std::vector<WorkerSpec>& workers,
                        const std::vector<WorkerSpec>& spares) {
  impl_->start(workers, spares);
}

void WorkerGroup::stand_by(const std::vector<WorkerSpec>& spares) { impl_->stand_by(spares); }

std::function<void(int pid)> WorkerGroup::on_ending() {
  return [&io = impl_->io, weak = std::weak_ptr(impl_)](int pid) {
    asio::post(io, [weak, pid] {
      if (const auto self = weak.lock()) self->on_ending(pid);
    });
  };
}

void WorkerGroup::look_at_kept() { impl_->look_at_kept(); }

void WorkerGroup::stop(int signal, std::chrono::milliseconds grace, Keep keep,
                       const std::string& why) {
  impl_->stop(signal, grace, keep, why);
}

int WorkerGroup::kept() const { return impl_->kept(); }

void WorkerGroup::end_kept() {
  if (impl_->state.active() || !impl_->guard) return;
  impl_->kept_workers.end_all(*impl_->guard, impl_->other_sessions());
}

void WorkerGroup::kill_worker(int local_rank) {
  const auto worker = impl_->workers.of_local_rank(local_rank);
  if (worker && !worker->gone) worker->child.send_to_group(SIGKILL);
}

bool WorkerGroup::can_park(int local_rank) const {
  const auto worker = impl_->workers.of_local_rank(local_rank);
  return worker && worker->parking.can_park();
}

std::string WorkerGroup::stderr_tail(int local_rank) {
  const auto worker = impl_->workers.of_local_rank(local_rank);
  if (!worker || !worker->stream) return "";
  impl_->output.pump(*worker->stream);
  return OutputForwarder::last_stderr(*worker->stream, INT_MAX);
}

void WorkerGroup::forward_signal(int signal) {
  for (const auto& worker : impl_->workers.processes()) worker->child.send(signal);
  for (const auto& worker : impl_->kept_workers.processes()) worker->child.send(signal);
}

void WorkerGroup::halt() {
  std::vector<int> all = impl_->leaders();
  const std::set<int> others = impl_->kept_sessions();
  all.insert(all.end(), others.begin(), others.end());
  impl_->members.halt(all);
}

void WorkerGroup::let_go() { impl_->members.let_go(); }

void WorkerGroup::guard(int workers, std::string folder) {
  impl_->left_behind.folder = std::move(folder);
  impl_->make_guard(workers);
}

void WorkerGroup::set_status_socket(std::string path) {
  impl_->left_behind.socket = std::move(path);
  if (impl_->guard) impl_->guard->set_left_behind(impl_->left_behind);
}

void WorkerGroup::stop_spares() {
  if (impl_->spares) impl_->spares->stop();
}

int WorkerGroup::spares_ready() const { return impl_->spares ? impl_->spares->ready() : 0; }

bool WorkerGroup::was_spare(int local_rank) const {
  const auto worker = impl_->workers.of_local_rank(local_rank);
  return worker && worker->was_spare;
}

bool WorkerGroup::was_kept(int local_rank) const {
  const auto worker = impl_->workers.of_local_rank(local_rank);
  return worker && worker->was_kept;
}

int WorkerGroup::running() const { return impl_->running(); }

std::vector<int> WorkerGroup::pids() const {
  std::vector<int> pids;
  for (const auto& worker : impl_->workers.processes()) {
    if (!worker->gone) pids.push_back(worker->child.pid());
  }
  for (const auto& worker : impl_->kept_workers.processes()) pids.push_back(worker->child.pid());
  return pids;
}

}  // namespace ddprun::launcher
