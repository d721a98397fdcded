// Everything is looked up when somebody asks: a job that nobody watches pays for none of it.
#include "launcher/watched_job.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <asio/steady_timer.hpp>
#include <ctime>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "launcher/machine/this_machine.h"
#include "launcher/report/stack_text.h"
#include "launcher/watch/process_use.h"
#include "launcher/watch/run_folder.h"

namespace ddprun::launcher {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t failures_kept = 20;
// A thread answers a signal at once, unless it is halted or waits for a disk.
constexpr std::chrono::milliseconds stack_limit{1'000};
constexpr std::chrono::milliseconds stack_look_pause{10};

double seconds_since(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

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

// What the worker said itself, in one line.
std::string own_word(const rendezvous::FirstCause& cause) {
  if (!cause.message.empty()) return cause.message.substr(0, cause.message.find('\n'));
  const std::size_t end = cause.last_stderr.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const std::size_t before = cause.last_stderr.rfind('\n', end);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  return cause.last_stderr.substr(begin, end + 1 - begin);
}

// One that was asked, while some have not answered.
struct StackQuestion : std::enable_shared_from_this<StackQuestion> {
  struct Asked {
    int local_rank = 0;
    int rank = 0;
    std::uint32_t answers_before = 0;
  };

  StackQuestion(asio::io_context& io, StatusSocket::Reply to) : timer(io), reply(std::move(to)) {}

  void look(const ProgressPages& pages) {
    for (auto each = open.begin(); each != open.end();) {
      const auto text = pages.stack(each->local_rank, each->answers_before);
      if (text) stacks[std::to_string(each->rank)] = readable_stack(*text);
      each = text ? open.erase(each) : each + 1;
    }
    if (open.empty() || steady_clock::now() >= until) {
      const nlohmann::json answer = {{"stacks", stacks}};
      return reply(answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
    timer.expires_after(stack_look_pause);
    timer.async_wait([self = shared_from_this(), &pages](const asio::error_code& error) {
      if (!error) self->look(pages);
    });
  }

  asio::steady_timer timer;
  StatusSocket::Reply reply;
  std::vector<Asked> open;
  std::map<std::string, std::string> stacks;  // By rank.
  steady_clock::time_point until = steady_clock::now() + stack_limit;
};

}  // namespace

WatchedJob::WatchedJob(asio::io_context& io, const LaunchOptions& options,
                       const LocalAttempt& attempt, std::string host,
                       std::function<AgentState()> state)
    : io_(io),
      options_(options),
      attempt_(attempt),
      host_(std::move(host)),
      state_(std::move(state)),
      started_unix_s_(::time(nullptr)),
      since_(steady_clock::now()),
      socket_(io, [this](const std::string& what, const StatusSocket::Reply& reply) {
        answer(what, reply);
      }) {}

void WatchedJob::open() {
  const std::string why = socket_.open(run_folder_places(environment_variable, ::geteuid()));
  if (!why.empty()) spdlog::info("ddprun status will not find this job: {}", why);
}

void WatchedJob::round_started(const rendezvous::RoundStart& round) {
  round_ = round;
  ++rounds_;
  since_ = steady_clock::now();
}

void WatchedJob::failed(const rendezvous::FirstCause& cause) {
  ++failures_total_;
  failures_.push_back({.time_unix_s = ::time(nullptr),
                       .attempt = cause.attempt,
                       .rank = cause.rank,
                       .host = cause.host,
                       .text = rendezvous::describe(cause),
                       .what = own_word(cause)});
  if (failures_.size() > failures_kept) failures_.erase(failures_.begin());
}

void WatchedJob::answer(const std::string& what, const StatusSocket::Reply& reply) const {
  if (what == "snapshot") return reply(to_json(snapshot()));
  if (what == "stacks") return collect_stacks(reply);
  reply(R"({"error": "this launcher answers {\"ask\": \"snapshot\"} and \"stacks\""})");
}

// All are asked at once, and have the same time: where they stand shall be one moment.
void WatchedJob::collect_stacks(const StatusSocket::Reply& reply) const {
  auto question = std::make_shared<StackQuestion>(io_, reply);
  const auto& pids = attempt_.started_pids();
  for (std::size_t i = 0; i < pids.size(); ++i) {
    // One that has ended may have given its pid to somebody else.
    if (end_of(pids[i]) != nullptr) continue;
    const int local_rank = static_cast<int>(i);
    const auto asked = attempt_.pages().ask_stack(local_rank, pids[i]);
    if (asked) question->open.push_back({local_rank, round_.rank_base + local_rank, *asked});
  }
  question->look(attempt_.pages());
}

JobSnapshot WatchedJob::snapshot() const {
  JobSnapshot job{
      .run_id = options_.run_id,
      .program = options_.program_name,
      .host = host_,
      .launcher_pid = ::getpid(),
      .started_unix_s = started_unix_s_,
      .taken_s = std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count(),
      .state = node_state(state_()),
      .since_s = seconds_since(since_),
      .attempt = round_.attempt,
      .attempts = rounds_,
      .term = round_.term,
      .max_restarts = options_.max_restarts,
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
  return job;
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
  if (const WorkerEnd* end = end_of(rank.pid)) {
    rank.state = end->success()       ? RankState::Succeeded
                 : end->stopped_by_us ? RankState::Stopped
                                      : RankState::Failed;
    rank.exit_code = end->exit_code;
    rank.signal = end->signal;
    return rank;
  }
  if (attempt_.is_parked(rank.pid)) rank.state = RankState::Parked;
  rank.use = read_process_use(rank.pid);
  rank.progress = attempt_.progress(local_rank);
  return rank;
}

}  // namespace ddprun::launcher
