// Everything is looked up when somebody asks: a job that nobody watches pays for none of it.
#include "launcher/watched_job.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <asio/steady_timer.hpp>
#include <chrono>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "launcher/machine/this_machine.h"
#include "launcher/report/stack_text.h"
#include "launcher/status/log_ends.h"
#include "launcher/status/process_use.h"
#include "launcher/status/run_folder.h"
#include "launcher/watch/job_lines.h"
#include "rendezvous/control/last_line.h"
#include "rendezvous/coordinator.h"
#include "rendezvous/json/json_text.h"
#include "rendezvous/random_id.h"

namespace ddprun::launcher {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t failures_kept = 20;
// A thread answers a signal at once, unless it is halted or waits for a disk.
constexpr std::chrono::milliseconds stack_limit{1'000};
constexpr std::chrono::milliseconds stack_look_pause{10};
// Of what this node tells others: below Gathering::node_bytes_max.
constexpr std::size_t node_bytes_max = 384u << 10;
constexpr std::size_t node_lines_bytes_max = 256u << 10;
// Above that of node_stack_lines(), so that what it has by then is told.
constexpr std::chrono::milliseconds lines_limit{12'000};

double seconds_since(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

// What the worker said itself, in one line. Of other causes their description is all that is known.
std::string own_word(const rendezvous::FirstCause& cause) {
  if (cause.kind != rendezvous::FirstCause::Kind::WorkerFailed) return "";
  if (!cause.message.empty()) return cause.message.substr(0, cause.message.find('\n'));
  return std::string(rendezvous::last_line(cause.last_stderr));
}

// One that was asked, while some have not answered.
struct StackQuestion : std::enable_shared_from_this<StackQuestion> {
  struct Asked {
    int local_rank = 0;
    int rank = 0;
    std::uint32_t answers_before = 0;
  };

  StackQuestion(asio::io_context& io, std::function<void(const WatchedJob::Stacks&)> to)
      : timer(io), done(std::move(to)) {}

  void look(const ProgressPages& pages) {
    for (auto each = open.begin(); each != open.end();) {
      const auto text = pages.stack(each->local_rank, each->answers_before);
      if (text) stacks[each->rank] = readable_stack(*text);
      each = text ? open.erase(each) : each + 1;
    }
    if (open.empty() || steady_clock::now() >= until) return done(stacks);
    timer.expires_after(stack_look_pause);
    timer.async_wait([self = shared_from_this(), &pages](const asio::error_code& error) {
      if (!error) self->look(pages);
    });
  }

  asio::steady_timer timer;
  std::function<void(const WatchedJob::Stacks&)> done;
  std::vector<Asked> open;
  WatchedJob::Stacks stacks;
  steady_clock::time_point until = steady_clock::now() + stack_limit;
};

}  // namespace

NodeState node_state(AgentState state) {
  switch (state) {
    case AgentState::Joining:
      return NodeState::Waiting;
    case AgentState::Running:
      return NodeState::Running;
    case AgentState::Succeeded:
      return NodeState::Succeeded;
    case AgentState::Stopping:
      return NodeState::Stopping;
    case AgentState::Stopped:
      return NodeState::Stopped;
    case AgentState::Done:
      break;
  }
  return NodeState::Done;
}

WatchedJob::WatchedJob(asio::io_context& io, const LaunchOptions& options,
                       const LocalAttempt& attempt, std::string host,
                       std::function<NodeState()> state, JobViewWays ways)
    : io_(io),
      options_(options),
      attempt_(attempt),
      own_{std::move(host), rendezvous::random_id(8), ::getpid()},
      state_(std::move(state)),
      started_unix_s_(::time(nullptr)),
      since_(steady_clock::now()),
      view_(options.nnodes_max == 1, own_, std::move(ways)),
      job_stacks_(io, view_, [this](auto done) { collect_own_stacks(std::move(done)); }),
      gpus_(io),
      lines_call_(io, "what shows stacks and logs"),
      socket_(io, [this](const rendezvous::Query& query,
                         const StatusSocket::Reply& reply) { answer(query, reply); }),
      folder_call_(io, "the folder of ddprun status") {
  round_.max_restarts = options_.max_restarts;  // Until a round says what the job's is.
}

void WatchedJob::open(std::function<void(const std::string&)> on_open) {
  on_open_ = std::move(on_open);
  try {
    serve(StatusSocket::socket_in(run_folder_places(environment_variable, ::geteuid())));
  } catch (const std::runtime_error& error) {
    spdlog::info("ddprun status will not find this job: {}", error.what());
  }
}

void WatchedJob::serve(std::unique_ptr<RunSocket> socket) {
  const std::string path = socket->path();
  socket_.serve(std::move(socket), [this] { open_again(); });
  on_open_(path);
}

// Beside the loop: workers train by now, and heartbeats wait for no file server.
void WatchedJob::open_again() {
  const auto made = std::make_shared<std::unique_ptr<RunSocket>>();
  folder_call_.start(
      [made, places = run_folder_places(environment_variable, ::geteuid())] {
        *made = StatusSocket::socket_in(places);
      },
      std::chrono::seconds(30),
      [this, made](const std::string& why) {
        if (why.empty()) return serve(std::move(*made));
        spdlog::info("ddprun status does not find this job any more, as its socket was removed: {}",
                     why);
      });
}

void WatchedJob::round_started(const rendezvous::RoundStart& round) {
  round_ = round;
  ++rounds_;
  since_ = steady_clock::now();
  times_.keep_only(attempt_.started_pids());  // Those that are kept have their pids on.
}

void WatchedJob::attempt_ended(const rendezvous::FirstCause& cause) {
  // Nobody is to blame for these, and an alert on failures must not go off at each preemption.
  if ((cause.kind == rendezvous::FirstCause::Kind::Interrupted &&
       !rendezvous::is_of_unfit_node(cause)) ||
      rendezvous::asks_to_be_queued_again(cause)) {
    return;
  }
  ++failures_total_;
  failures_.push_back({.time_unix_s = ::time(nullptr),
                       .attempt = cause.attempt,
                       .rank = cause.rank,
                       .host = cause.host,
                       .text = rendezvous::describe(cause),
                       .what = own_word(cause)});
  if (failures_.size() > failures_kept) failures_.erase(failures_.begin());
}

void WatchedJob::answer(const rendezvous::Query& query, const StatusSocket::Reply& reply) {
  if (query.what == "snapshot") return tell_snapshot(reply);
  if (query.what == "stacks") return collect_stacks(query.rank, reply);
  if (query.what == "all stacks" || query.what == "all logs") {
    rendezvous::Query of_all = query;
    of_all.what = query.what.substr(4);
    return answer_for_job(of_all, reply);
  }
  reply(R"({"error": "this launcher answers {\"ask\": \"snapshot\"}, \"stacks\", \"all stacks\")"
        R"( and \"all logs\""})");
}

void WatchedJob::look_around(bool others, std::function<void()> done) {
  gpus_.refresh([this, others, done = std::move(done)] {
    if (others) return view_.refresh(done);
    done();
  });
}

void WatchedJob::tell_snapshot(std::function<void(const std::string&)> reply) {
  look_around(/*others=*/true, [this, reply = std::move(reply)] {
    JobSnapshot job = snapshot();
    std::string text = to_json(job);
    // Of a job of thousands of ranks those of the first nodes are shown.
    for (std::size_t with_ranks = job.others.size();
         text.size() > rendezvous::Coordinator::answer_bytes_max && with_ranks > 0;) {
      with_ranks /= 2;
      for (std::size_t i = with_ranks; i < job.others.size(); ++i) job.others[i].ranks.clear();
      text = to_json(job);
    }
    reply(text);
  });
}

void WatchedJob::answer_for_job(const rendezvous::Query& query,
                                std::function<void(const std::string&)> reply) {
  if (query.what == "snapshot") return tell_snapshot(std::move(reply));
  if (query.what == "equal stacks") {
    return job_stacks_.collect(rounds_, [reply = std::move(reply)](const JobStacks::Lines& lines) {
      reply(lines_to_json(lines, rendezvous::Coordinator::answer_bytes_max));
    });
  }
  if (query.what != "stacks" && query.what != "logs") {
    return reply(nodes_to_json({}, node_lines_bytes_max));
  }
  // The others are asked first: all nodes look at their ranks at the same time.
  const auto take_own =
      view_.lines(query, [reply = std::move(reply)](const std::vector<NodeLines>& nodes) {
        reply(nodes_to_json(nodes, rendezvous::Coordinator::answer_bytes_max));
      });
  collect_lines(query, [this, take_own](const std::vector<std::string>& lines) {
    take_own(own_lines(lines));
  });
}

NodeLines WatchedJob::own_lines(const std::vector<std::string>& lines) const {
  return {.host = own_.host,
          .node_rank = rounds_ > 0 ? round_.group_rank : -1,
          .lines = lines,
          .why = {}};
}

void WatchedJob::collect_own_stacks(std::function<void(NodeLines)> done) {
  collect_lines({.what = "stacks"},
                [this, done = std::move(done)](const std::vector<std::string>& lines) {
                  done(own_lines(lines));
                });
}

void WatchedJob::ask_job_stacks(std::function<void(const JobStackLines&)> done) {
  if (!view_.leads()) return view_.job_stacks(std::move(done));
  job_stacks_.collect(rounds_, [done = std::move(done)](const JobStacks::Lines& lines) {
    done({lines, ""});
  });
}

void WatchedJob::answer_for_node(const rendezvous::Query& query,
                                 std::function<void(const std::string&)> reply) {
  if (query.what == "snapshot") {
    return gpus_.refresh(
        [this, reply = std::move(reply)] { reply(node_to_json(own_snapshot(), node_bytes_max)); });
  }
  if (query.what == "paces") return reply(paces_to_json(paces()));
  if (query.what != "stacks" && query.what != "logs") {
    return reply(lines_to_json({}, node_lines_bytes_max));
  }
  collect_lines(query, [reply = std::move(reply)](const std::vector<std::string>& lines) {
    reply(lines_to_json(lines, node_lines_bytes_max));
  });
}

// In a thread: logs may lie on a file system whose server is away, and py-spy takes its time.
void WatchedJob::collect_lines(const rendezvous::Query& query, LinesDone done) {
  if (!collecting_.empty()) {
    // A node that is asked by its people asks the coordinator, which asks it the same once more.
    const bool same = query.what == collected_.what && query.rank == collected_.rank &&
                      query.lines == collected_.lines;
    if (same) return collecting_.push_back(std::move(done));
    return done({"  somebody else asks for stacks or logs just now: ask again"});
  }
  collected_ = query;
  collecting_.push_back(std::move(done));
  const std::optional<int> rank = query.rank < 0 ? std::nullopt : std::optional(query.rank);
  auto lines = std::make_shared<std::vector<std::string>>();
  const auto call = [this, lines](std::function<void()> work) {
    lines_call_.start(std::move(work), lines_limit, [this, lines](const std::string& why) {
      // After the limit the thread may still write to what it was given.
      lines_collected(why.empty() ? *lines : std::vector<std::string>{"  " + why});
    });
  };
  if (query.what == "logs") {
    return call([lines, rank, count = query.lines, job = own_snapshot()] {
      *lines = log_lines(job, rank, count);
    });
  }
  ask_stacks(query.rank, [this, lines, rank, call](const Stacks& told) {
    call([lines, rank, told, job = own_snapshot()] { *lines = node_stack_lines(job, told, rank); });
  });
}

void WatchedJob::lines_collected(const std::vector<std::string>& lines) {
  for (const auto& done : std::exchange(collecting_, {})) done(lines);
}

// All are asked at once, and have the same time: where they stand shall be one moment.
void WatchedJob::ask_stacks(int rank, std::function<void(const Stacks&)> done) const {
  auto question = std::make_shared<StackQuestion>(io_, std::move(done));
  const auto& pids = attempt_.started_pids();
  for (std::size_t i = 0; i < pids.size(); ++i) {
    // One that has ended may have given its pid to somebody else.
    if (end_of(pids[i]) != nullptr) continue;
    const int local_rank = static_cast<int>(i);
    if (rank >= 0 && round_.rank_base + local_rank != rank) continue;
    const auto asked = attempt_.pages().ask_stack(local_rank, pids[i]);
    if (asked) question->open.push_back({local_rank, round_.rank_base + local_rank, *asked});
  }
  question->look(attempt_.pages());
}

void WatchedJob::collect_stacks(int rank, std::function<void(const std::string& json)> done) const {
  ask_stacks(rank, [done = std::move(done)](const Stacks& stacks) {
    nlohmann::json by_rank = nlohmann::json::object();
    for (const auto& [number, text] : stacks) by_rank[std::to_string(number)] = text;
    const nlohmann::json answer = {{"stacks", std::move(by_rank)}};
    done(rendezvous::json_line(answer));
  });
}

NodePaces WatchedJob::paces() const {
  NodePaces paces{.node = round_.group_rank, .host = own_.host};
  for (int i = 0; i < attempt_.workers(); ++i) {
    const auto progress = attempt_.progress(i);
    if (progress && attempt_.is_at_work(i)) paces.add(round_.rank_base + i, *progress);
  }
  return paces;
}

void WatchedJob::ask_paces(std::chrono::milliseconds limit,
                           std::function<void(const std::vector<NodePaces>&)> done) const {
  view_.paces(round_.world_size, limit,
              [this, done = std::move(done)](std::vector<NodePaces> nodes) {
                nodes.push_back(paces());
                done(nodes);
              });
}

JobSnapshot WatchedJob::snapshot() const {
  JobSnapshot job = own_snapshot();
  job.others = view_.others();
  return job;
}

JobSnapshot WatchedJob::own_snapshot() const {
  JobSnapshot job{
      .run_id = options_.run_id,
      .program = options_.program_name,
      .host = own_.host,
      .launcher_id = own_.launcher_id,
      .launcher_pid = own_.launcher_pid,
      .started_unix_s = started_unix_s_,
      .taken_s = std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count(),
      .state = state_(),
      .since_s = seconds_since(since_),
      .attempt = round_.attempt,
      .attempts = rounds_,
      .term = round_.term,
      .max_restarts = round_.max_restarts,
      .workers = options_.nproc_per_node,
      .spares = options_.spares,
      .spares_ready = attempt_.spares_ready(),
      .log_dir = attempt_.log_folder(),
      .failures = failures_,
      .failures_total = failures_total_};
  if (rounds_ == 0) return job;
  job.workers = attempt_.workers();
  job.node_rank = round_.group_rank;
  job.nodes = round_.group_world_size;
  job.first_rank = round_.rank_base;
  job.world_size = round_.world_size;
  job.master = fmt::format("{}:{}", round_.master_addr, round_.master_port);
  for (std::size_t i = 0; i < attempt_.started_pids().size(); ++i) {
    job.ranks.push_back(rank(static_cast<int>(i)));
  }
  add_gpus(job.ranks);
  return job;
}

void WatchedJob::add_gpus(std::vector<RankSnapshot>& ranks) const {
  const auto uses =
      gpus_.uses(attempt_.started_pids(), environment_variable("CUDA_VISIBLE_DEVICES"));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    // The pid of one that has ended may be somebody else's.
    if (ranks[i].use.processes > 0) ranks[i].gpu = uses[i];
  }
}

const WorkerEnd* WatchedJob::end_of(int pid) const {
  for (const WorkerEnd& end : attempt_.ends()) {
    if (end.pid == pid) return &end;
  }
  return nullptr;
}

RankSnapshot WatchedJob::rank(int local_rank) const {
  const auto index = static_cast<std::size_t>(local_rank);
  RankSnapshot rank{.rank = round_.rank_base + local_rank,
                    .local_rank = local_rank,
                    .pid = attempt_.started_pids()[index]};
  if (index < attempt_.outputs().size()) {
    rank.stdout_file = attempt_.outputs()[index].out.file;
    rank.stderr_file = attempt_.outputs()[index].err.file;
  }
  // An attempt's start clears the pages, so none of them is of an earlier one.
  rank.progress = attempt_.progress(local_rank);
  if (const WorkerEnd* end = end_of(rank.pid)) {
    rank.state = end->success()       ? RankState::Succeeded
                 : end->stopped_by_us ? RankState::Stopped
                                      : RankState::Failed;
    rank.exit_code = end->exit_code;
    rank.signal = end->signal;
    if (rank.progress) rank.progress = progress_of_ended(*rank.progress);
    return rank;
  }
  if (attempt_.is_parked(rank.pid)) rank.state = RankState::Parked;
  rank.use = read_process_use(rank.pid);
  if (rank.use.processes > 0) rank.use.cpu_s = times_.never_back(rank.pid, rank.use.cpu_s);
  return rank;
}

}  // namespace ddprun::launcher
