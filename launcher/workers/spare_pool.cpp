// Pipes, pidfds and a timer in; processes, words and signals out. A spare that does not do what it
// should costs the job nothing but its memory: wherever one fails, a worker is started cold.
#include "launcher/workers/spare_pool.h"

#include <fmt/format.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <system_error>
#include <utility>

#include "launcher/processes/background_priority.h"
#include "launcher/processes/child_sessions.h"
#include "launcher/processes/kill_tree.h"
#include "launcher/processes/worker_members.h"
#include "launcher/workers/rank_channel.h"
#include "launcher/workers/start_error.h"
#include "rendezvous/contract/spare_channel.h"
#include "rendezvous/control/first_cause.h"
#include "rendezvous/time_text.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

namespace {

using rendezvous::UniqueFd;
using SpareClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds priority_pause{110};  // restore_priority(); the kernel's: 100.
// A process that was killed is gone as soon as the kernel has freed its memory.
constexpr std::chrono::seconds kill_wait{5};
constexpr std::chrono::milliseconds unwatched_pause{20};

struct SpareProcess {
  SpareProcess(asio::io_context& io, LaunchedChild started, asio::posix::stream_descriptor channel)
      : child(std::move(started.process)),
        stream(std::move(started.stream)),
        ended(io),
        said(std::move(channel)) {}

  ChildProcess child;
  std::shared_ptr<OutputForwarder::Stream> stream;
  asio::posix::stream_descriptor ended;  // A duplicate of the pidfd; closed: nobody watches it.
  asio::posix::stream_descriptor said;   // Our end of its channel.
  SpareClock::time_point started_at = SpareClock::now();
  bool ready = false;
};

std::string end_text(const ExitStatus& status) {
  return status.signal != 0 ? "was killed by " + rendezvous::signal_name(status.signal)
                            : "ended with exit code " + std::to_string(status.exit_code);
}

// What spares have left behind in this session. The attempts that a spare waits beside leave it be.
void kill_orphans(int session) {
  for (const int pid : WorkerMembers::adopted_children()) {
    if (read_process(pid).session == session) kill_tree(pid);
  }
}

// Everything that this spare has started, and itself.
void kill_spare(const ChildProcess& child) {
  kill_tree(child.pid());
  kill_orphans(child.pid());
  child.send_to_group(SIGKILL);
}

}  // namespace

struct SparePool::Impl : std::enable_shared_from_this<Impl> {
  Impl(asio::io_context& io_context, OutputForwarder& forwarder, ChildGuard& child_guard, int count,
       int places, SpareEvents spare_events, SpareLimits limits)
      : io(io_context),
        output(forwarder),
        guard(child_guard),
        events(std::move(spare_events)),
        plan(count, limits, places),
        start_timer(io),
        priority_timer(io),
        unwatched_timer(io) {}

  void look();
  void start_one(int place);
  void watch(int place, const std::shared_ptr<SpareProcess>& spare);
  void on_said(int place, const std::shared_ptr<SpareProcess>& spare);
  void on_ended(int place, const std::shared_ptr<SpareProcess>& spare);
  void give_up_waiting(int place);
  void reap_unwatched();
  void reap(const std::shared_ptr<SpareProcess>& spare, SpareClock::time_point limit);
  void account(int place, const ExitStatus& status, const std::string& who);
  void leave_background(int pid);
  std::optional<LaunchedChild> take(const WorkerSpec& worker, const DeathMarks& marks);
  void stop();
  void reap_all();

  asio::io_context& io;
  OutputForwarder& output;
  ChildGuard& guard;
  SpareEvents events;
  SparePlan plan;
  asio::steady_timer start_timer;     // When the plan wants to be asked again.
  asio::steady_timer priority_timer;  // For `background`.
  asio::steady_timer unwatched_timer;
  std::vector<int> background;    // Pids whose priority the kernel would not restore yet.
  std::vector<WorkerSpec> specs;  // By place.
  std::map<int, std::shared_ptr<SpareProcess>> spares;  // By place: those without a rank.
  std::vector<std::shared_ptr<SpareProcess>> dying;     // Killed, and no spares any more.
  bool stopped = false;
};

// Starts what the plan wants now, and asks again when it may want more.
void SparePool::Impl::look() {
  if (stopped) return;
  const auto now = SpareClock::now();
  while (const auto place = plan.overdue(now)) give_up_waiting(*place);
  while (const auto place = plan.next(now)) {
    if (*place >= static_cast<int>(specs.size())) return;
    start_one(*place);
  }
  start_timer.cancel();
  const auto due = plan.due(now);
  if (!due) return;
  start_timer.expires_at(*due);
  start_timer.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    const auto self = weak.lock();
    if (!error && self) self->look();
  });
}

void SparePool::Impl::start_one(int place) {
  plan.started(place, SpareClock::now());
  WorkerSpec spec = specs[static_cast<std::size_t>(place)];
  std::shared_ptr<SpareProcess> spare;
  try {
    RankChannel channel = make_rank_channel(place);
    asio::posix::stream_descriptor said(io);
    rendezvous::hand_over(std::move(channel.ours), said);
    spec.channel_fd = channel.theirs.get();
    spare = std::make_shared<SpareProcess>(
        io, launch_child(spec, output, guard.variable(), /*may_inherit_stdout=*/false, {}),
        std::move(said));
    lower_priority(spare->child.pid());
    guard.add_session(spare->child.pid());
    rendezvous::hand_over(rendezvous::duplicate(spare->child.pidfd()), spare->ended);
  } catch (const std::exception& error) {  // Out of descriptors, perhaps with a process by then.
    if (spare) {
      kill_spare(spare->child);
      dying.push_back(spare);
      reap_unwatched();
    }
    return account(place, {.exit_code = 126}, std::string("a spare (") + error.what() + ")");
  }
  spares[place] = spare;
  watch(place, spare);
  if (events.on_started) events.on_started(place, spare->child.pid());
}

void SparePool::Impl::watch(int place, const std::shared_ptr<SpareProcess>& spare) {
  const auto wait = asio::posix::stream_descriptor::wait_read;
  spare->ended.async_wait(wait,
                          [weak = weak_from_this(), place, spare](const asio::error_code& error) {
                            const auto self = weak.lock();
                            if (!error && self) self->on_ended(place, spare);
                          });
  spare->said.async_wait(wait,
                         [weak = weak_from_this(), place, spare](const asio::error_code& error) {
                           const auto self = weak.lock();
                           if (!error && self) self->on_said(place, spare);
                         });
}

// It is ready, or has closed its end: a program that does not know what the descriptor is for.
void SparePool::Impl::on_said(int place, const std::shared_ptr<SpareProcess>& spare) {
  char byte = 0;
  if (::recv(spare->said.native_handle(), &byte, 1, MSG_DONTWAIT) != 1) return;
  spare->ready = true;
  plan.ready(place, SpareClock::now());
  const auto warmed =
      std::chrono::duration_cast<std::chrono::milliseconds>(SpareClock::now() - spare->started_at);
  spdlog::debug("the spare of place {} (pid {}) is ready after {} ms", place, spare->child.pid(),
                warmed.count());
  // Now and not when it is needed: it sleeps from here on, and would lose time then.
  leave_background(spare->child.pid());
  if (events.on_ready) events.on_ready(place, spare->child.pid(), warmed.count());
  look();
}

void SparePool::Impl::leave_background(int pid) {
  if (restore_priority(pid)) return;
  background.push_back(pid);
  priority_timer.expires_after(priority_pause);
  priority_timer.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    const auto self = weak.lock();
    if (error || !self) return;
    for (const int waiting : std::exchange(self->background, {})) {
      if (read_process(waiting).pid != 0) self->leave_background(waiting);
    }
  });
}

void SparePool::Impl::on_ended(int place, const std::shared_ptr<SpareProcess>& spare) {
  if (!spare->ready) on_said(place, spare);  // Its last word may have come together with this.
  const auto status = spare->child.reap();
  if (!status) return;  // Held by a debugger.
  const int pid = spare->child.pid();
  kill_orphans(pid);
  guard.remove_session(pid);
  output.drain(*spare->stream);
  const bool was_late = std::erase(dying, spare) > 0;
  if (!was_late) spares.erase(place);
  if (events.on_ended) events.on_ended(place, pid, *status);
  if (stopped || was_late) return;
  account(place, *status,
          "the spare of place " + std::to_string(place) + " (pid " + std::to_string(pid) + ") " +
              end_text(*status));
  look();
}

// It neither asks for a rank nor ends. Its place is free at once: a process that hangs in the
// kernel outlives SIGKILL.
void SparePool::Impl::give_up_waiting(int place) {
  const auto limit = plan.ready_by(place).value_or(std::chrono::milliseconds{0});
  const auto spare = spares.at(place);
  // This launcher may have been stopped, and the word has been here for long.
  if (on_said(place, spare); spare->ready) return;
  const std::string in = read_wait_channel(spare->child.pid());
  kill_spare(spare->child);
  dying.push_back(spare);
  spares.erase(place);
  account(place, {.signal = SIGKILL},
          fmt::format("the spare of place {} (pid {}) had not asked for a rank within {} "
                      "(--spare-timeout) and was killed{}",
                      place, spare->child.pid(), rendezvous::time_text(limit),
                      in.empty() ? "" : ", waiting in the kernel's " + in));
}

void SparePool::Impl::account(int place, const ExitStatus& status, const std::string& who) {
  const bool succeeded = status.signal == 0 && status.exit_code == 0;
  const SparePlan::End end = plan.ended(place, succeeded, SpareClock::now());
  const std::string follows = end.for_all    ? "; the job goes on without spares"
                              : end.given_up ? "; the job goes on without a spare for it"
                                             : "; the job goes on";
  const std::string text = who + ": " + end.reason + follows;
  if (end.tell) {
    spdlog::warn("{}", text);
  } else {
    spdlog::debug("{}", text);
  }
  // Not from here: this may be a call of the owner's.
  if (end.given_up && events.on_given_up) {
    asio::post(io, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (self && !self->stopped && self->events.on_given_up) self->events.on_given_up();
    });
  }
}

std::optional<LaunchedChild> SparePool::Impl::take(const WorkerSpec& worker,
                                                   const DeathMarks& marks) {
  const auto found = spares.find(worker.place);
  if (stopped || found == spares.end()) return std::nullopt;
  const auto spare = found->second;
  if (!spare->ready || spare->child.has_ended()) return std::nullopt;
  UniqueFd channel;
  try {
    if (worker.keeps_channel) channel = rendezvous::duplicate(spare->said.native_handle());
    // Before it hears its rank: what it writes then is the worker's.
    output.redirect(*spare->stream, worker.output);
  } catch (const std::system_error& error) {
    kill_spare(spare->child);
    throw start_error(worker.local_rank, error);
  }
  if (!send_whole(spare->said.native_handle(), rank_message_for(worker, marks))) {
    spdlog::warn(
        "the spare of place {} (pid {}) does not take its rank ({}); a worker is "
        "started anew",
        worker.place, spare->child.pid(), std::strerror(errno));
    kill_spare(spare->child);
    return std::nullopt;
  }
  plan.take(worker.place);
  spares.erase(found);
  spare->ended.close();
  spare->said.close();
  return LaunchedChild{std::move(spare->child), spare->stream, std::move(channel)};
}

void SparePool::Impl::stop() {
  stopped = true;
  start_timer.cancel();
  priority_timer.cancel();
  unwatched_timer.cancel();
  for (const auto& [place, spare] : spares) kill_spare(spare->child);
}

void SparePool::Impl::reap_all() {
  const auto limit = SpareClock::now() + kill_wait;
  for (const auto& [place, spare] : spares) reap(spare, limit);
  for (const auto& spare : dying) reap(spare, limit);
  spares.clear();
  dying.clear();
}

// Those of the dying whose end no descriptor tells. The job goes on meanwhile.
void SparePool::Impl::reap_unwatched() {
  const auto is_unwatched = [](const auto& spare) { return !spare->ended.is_open(); };
  std::erase_if(dying, [&](const std::shared_ptr<SpareProcess>& spare) {
    if (!is_unwatched(spare) || !spare->child.reap()) return false;
    guard.remove_session(spare->child.pid());
    output.drain(*spare->stream);
    return true;
  });
  if (std::none_of(dying.begin(), dying.end(), is_unwatched)) return;
  unwatched_timer.expires_after(unwatched_pause);
  unwatched_timer.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    const auto self = weak.lock();
    if (!error && self) self->reap_unwatched();
  });
}

// Waits for the end of one that was killed.
void SparePool::Impl::reap(const std::shared_ptr<SpareProcess>& spare,
                           SpareClock::time_point limit) {
  spare->ended.close();
  spare->said.close();
  while (!spare->child.reap() && !spare->child.reaped() && SpareClock::now() < limit) {
    ::usleep(500);
  }
  if (spare->child.reaped()) guard.remove_session(spare->child.pid());
  output.drain(*spare->stream);
}

SparePool::SparePool(asio::io_context& io, OutputForwarder& output, ChildGuard& guard, int spares,
                     int places, SpareEvents events, SpareLimits limits)
    : impl_(std::make_shared<Impl>(io, output, guard, spares, places, std::move(events), limits)) {}

SparePool::~SparePool() {
  impl_->events = {};
  impl_->stop();
  impl_->reap_all();
}

void SparePool::attempt_started(std::vector<WorkerSpec> specs, std::vector<int> missing) {
  impl_->specs = std::move(specs);
  impl_->plan.attempt_started(SpareClock::now(), std::move(missing));
  impl_->look();
}

void SparePool::attempt_ended() {
  impl_->plan.attempt_ended();
  impl_->look();
}

std::optional<LaunchedChild> SparePool::take(const WorkerSpec& worker, const DeathMarks& marks) {
  return impl_->take(worker, marks);
}

void SparePool::stop() { impl_->stop(); }

std::set<int> SparePool::sessions() const {
  std::set<int> sessions;
  for (const auto& [place, spare] : impl_->spares) sessions.insert(spare->child.pid());
  return sessions;
}

int SparePool::ready() const { return impl_->plan.ready_count(); }

bool SparePool::is_ready(int place) const { return impl_->plan.is_ready(place); }

bool SparePool::has_given_up(int place) const { return impl_->plan.has_given_up(place); }

}  // namespace ddprun::launcher
