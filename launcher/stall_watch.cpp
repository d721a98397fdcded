// Stacks are taken in a thread: py-spy and NCCL may take seconds each, and meanwhile this launcher
// has to be heard by the coordinator, or it counts as lost itself.
#include "launcher/stall_watch.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "launcher/attempt_choices.h"
#include "launcher/processes/child_sessions.h"
#include "launcher/report/failure_advice.h"
#include "launcher/stall/nccl_ras.h"
#include "launcher/stall/rank_names.h"
#include "launcher/status/process_use.h"
#include "launcher/status/rank_stacks.h"
#include "launcher/watch/job_lines.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds look_pause{1'000};
constexpr milliseconds look_pause_least{50};
constexpr int looks_in_limit = 8;  // Of a limit of seconds the end must not be a second late.
constexpr milliseconds all_nodes_pause{10'000};
constexpr int all_nodes_looks = 3;            // In the time for which a rank has to be slow.
constexpr milliseconds py_spy_limit{30'000};  // What it has not told by then the kernel does.
constexpr milliseconds ras_limit{8'000};      // Its own time-outs are of 5 s.
constexpr milliseconds gather_limit{60'000};
constexpr std::size_t notes_kept = 20;
// Of the other nodes: above what the way to them may take (job_view.cpp), so that a node which does
// not answer is named. So many times a job, since all that reports hold has to fit one message.
constexpr milliseconds job_stacks_limit{20'000};
constexpr int job_stacks_max = 8;
// On the console: all of one rank that is behind, of the others where they stand.
constexpr std::size_t lines_of_behind = 30;
constexpr std::size_t lines_of_other = 8;
constexpr std::size_t lines_told_max = 90;
constexpr std::size_t lines_in_cause = 16;
constexpr std::size_t raised_bytes_max = 200;

const char* word_for(OnStall on_stall) { return on_stall == OnStall::Fail ? "fail" : "auto"; }

StallLimits stall_limits_of(const LaunchOptions& options) {
  StallLimits limits{.timeout = options.stall_timeout, .on_stall = options.on_stall};
  limits.look = std::clamp(options.stall_timeout.value_or(milliseconds::max()) / looks_in_limit,
                           look_pause_least, look_pause);
  return limits;
}

// Whoever sets a limit for those that stand wants to hear as soon of those that are slow.
StragglerLimits straggler_limits_of(const LaunchOptions& options) {
  StragglerLimits limits;
  limits.lasting = std::min(limits.lasting, options.stall_timeout.value_or(limits.lasting));
  return limits;
}

std::string joined_lines(const std::vector<std::string>& lines, std::size_t most) {
  std::string text;
  for (std::size_t i = 0; i < lines.size() && i < most; ++i) {
    text += (text.empty() ? "" : "\n") + lines[i];
  }
  if (lines.size() > most) text += fmt::format("\n    [... {} lines more]", lines.size() - most);
  return text;
}

}  // namespace

// What the thread fills in.
struct StallWatch::Gathered {
  struct Rank {
    RankSnapshot snapshot;
    std::string own_stack;
    std::vector<std::string> lines;
    bool in_kernel = false;
  };
  std::vector<Rank> ranks;
  std::string ras_address;  // "" = is not to be asked.
  std::string ras_said;
  bool ras_answered = false;

  void take() {
    std::vector<AskedWorker> workers;
    for (const Rank& rank : ranks) workers.push_back({rank.snapshot.pid, rank.own_stack});
    auto lines = worker_stack_lines(workers, py_spy_limit);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      ranks[i].lines = std::move(lines[i]);
      ranks[i].in_kernel = waits_in_kernel(ranks[i].snapshot.pid);
    }
    if (ras_address.empty()) return;
    const RasAnswer answer = ask_nccl_ras(ras_address, ras_limit);
    ras_answered = !answer.text.empty();
    ras_said = answer.text + (ras_answered && !answer.why.empty() ? "\n" : "") + answer.why;
  }
};

StallWatch::StallWatch(asio::io_context& io, const LaunchOptions& options, LocalAttempt& attempt,
                       WatchedJob& watched, EventLog& events, OutputForwarder& output,
                       std::function<AgentState()> state, bool report_is_kept)
    : options_(options),
      attempt_(attempt),
      watched_(watched),
      events_(events),
      output_(output),
      state_(std::move(state)),
      report_is_kept_(report_is_kept),
      limits_(stall_limits_of(options)),
      detector_(limits_),
      straggler_limits_(straggler_limits_of(options)),
      stragglers_(straggler_limits_),
      timer_(io),
      stacks_call_(io, "whoever tells stacks"),
      job_stacks_timer_(io) {}

void StallWatch::attempt_started() {
  if (!options_.stall_watch) return;
  ++attempts_;
  // What still comes is of the attempt before, and its note says that it was too late.
  if (std::exchange(waiting_, std::nullopt)) gathering_ = false;
  detector_.attempt_started(attempt_.round().group_world_size <= 1, restart_left(attempt_.round()));
  stragglers_.attempt_started();
  look_later();
}

void StallWatch::look_later() {
  timer_.expires_after(limits_.look);
  timer_.async_wait([this](const asio::error_code& error) {
    if (!error) look();
  });
}

void StallWatch::look() {
  if (state_() != AgentState::Running) return;
  const StallStep step = detector_.look(looks(), steady_clock::now());
  switch (step.kind) {
    case StallStep::Kind::Nothing:
      break;
    case StallStep::Kind::Warn:
      spdlog::warn("{}", step.reason);
      break;
    case StallStep::Kind::Report:
      gather(step);
      break;
    case StallStep::Kind::Lost:
      lose(step);
      break;
    case StallStep::Kind::Spared:
      spdlog::info("nobody is killed for it (--on-stall auto): {}", step.reason);
      break;
  }
  look_for_stragglers();
  look_later();
}

std::vector<RankLook> StallWatch::looks() const {
  std::vector<RankLook> ranks;
  for (int i = 0; i < attempt_.workers(); ++i) {
    if (attempt_.is_at_work(i)) ranks.push_back(look_at(i));
  }
  return ranks;
}

RankLook StallWatch::look_at(int local_rank) const {
  const int pid = attempt_.started_pids()[static_cast<std::size_t>(local_rank)];
  RankLook look{.rank = attempt_.round().rank_base + local_rank};
  look.can_park = attempt_.can_park(local_rank);
  look.state = read_process(pid).state;
  if (const auto progress = attempt_.progress(local_rank)) {
    look.said = progress->said_at_ns;
    look.step = progress->step;
    look.done = progress->total_steps > 0 && progress->step >= progress->total_steps;
    look.phase = progress->phase;
    look.waits = progress->waiting_since_ns != 0;
    look.waits_since = progress->waiting_since_ns;
  } else if (options_
                 .stall_timeout) {  // Otherwise it matters to nobody, and costs a look at /proc.
    look.used_ms = static_cast<std::int64_t>(1e3 * read_process_use(pid).cpu_s);
    look.written = read_bytes_written(pid);
  }
  if (look.said == 0 && !options_.stall_timeout) return look;
  const LastException last = attempt_.last_exception(local_rank);
  // Who lost a peer waits for nobody's end but that one's.
  if (!names_a_lost_peer(last.message)) {
    look.raised = last.message.substr(0, std::min(last.message.find('\n'), raised_bytes_max));
    look.uncaught = last.uncaught;
  }
  return look;
}

void StallWatch::look_for_stragglers() {
  const NodePaces own = watched_.paces();
  if (own.ranks.empty() || own.stands) return;
  if (attempt_.round().group_world_size > 1) return look_at_all_nodes();
  compare(own.ranks);
}

void StallWatch::look_at_all_nodes() {
  const auto now = steady_clock::now();
  if (now < all_nodes_at_ || !watched_.leads()) return;
  const milliseconds pause = std::min(all_nodes_pause, straggler_limits_.lasting / all_nodes_looks);
  all_nodes_at_ = now + pause;
  watched_.ask_paces(pause, [this, attempt = attempts_](const std::vector<NodePaces>& nodes) {
    if (attempt == attempts_ && state_() == AgentState::Running) compare(paces_of(nodes));
  });
}

void StallWatch::compare(const std::vector<RankPace>& ranks) {
  const auto news = stragglers_.look(ranks, steady_clock::now());
  if (!news) return;
  if (news->over) return tell_straggler(*news);
  // Its GPU may be to blame, of which its own node knows.
  const bool has_others = attempt_.round().group_world_size > 1;
  watched_.look_around(has_others, [this, news = *news] { tell_straggler(news); });
}

void StallWatch::tell_straggler(const StragglerNews& news) {
  std::string why = describe(news);
  for (const RankSnapshot& rank : all_ranks(watched_.snapshot())) {
    if (news.over || rank.rank != news.rank || !rank.gpu) continue;
    const std::string slowed = slowdown_text(rank.gpu->clock);
    if (!slowed.empty())
      why += fmt::format("; its GPU {} is slowed down {}", rank.gpu->index, slowed);
  }
  events_.straggler({news.ranks, news.host, news.over, news.own_s, news.others_s, why});
  spdlog::log(news.over ? spdlog::level::info : spdlog::level::warn, "{}", why);
}

void StallWatch::gather(const StallStep& stall) {
  if (gathering_) return detector_.reported({});  // An earlier one still is; its stacks will do.
  gathering_ = true;
  spdlog::warn("{}", stall.reason);
  events_.stalled(stall.behind, stall.reason, /*counts_as_lost=*/false);
  watched_.ask_stacks(-1, [this, stall, attempt = attempts_](const WatchedJob::Stacks& own) {
    if (attempt == attempts_ && state_() == AgentState::Running) return take_stacks(stall, own);
    gathering_ = false;
  });
}

void StallWatch::take_stacks(const StallStep& stall, const WatchedJob::Stacks& own) {
  auto gathered = std::make_shared<Gathered>();
  for (const RankSnapshot& rank : watched_.snapshot().ranks) {
    if (rank.state != RankState::Running) continue;
    const auto stack = own.find(rank.rank);
    gathered->ranks.push_back({rank, stack == own.end() ? "" : stack->second, {}});
  }
  if (!std::exchange(asked_ras_, true)) gathered->ras_address = attempt_.ras_address();
  stacks_call_.start([gathered] { gathered->take(); }, gather_limit,
                     [this, stall, gathered, attempt = attempts_](const std::string& why) {
                       if (attempt != attempts_) {
                         gathering_ = false;
                         return;
                       }
                       // Until it comes back the thread may write there.
                       if (why.empty()) return add_job_stacks(tell(stall, *gathered));
                       spdlog::warn("stacks: {}", why);
                       reported({});
                     });
}

void StallWatch::reported(StackFacts facts) {
  gathering_ = false;
  detector_.reported(std::move(facts));
}

void StallWatch::add_job_stacks(StackFacts facts) {
  const bool has_note = !notes_.empty() && notes_.back().job_stacks.empty() &&
                        notes_.back().attempt == attempt_.round().attempt;
  if (!report_is_kept_ || !has_note || attempt_.round().group_world_size <= 1 ||
      job_stacks_asked_ == job_stacks_max) {
    return reported(std::move(facts));
  }
  const int number = ++job_stacks_asked_;
  waiting_ = {number, notes_.size() - 1, std::move(facts)};
  notes_.back().job_stacks = "the attempt ended before the other nodes had told theirs";
  job_stacks_timer_.expires_after(job_stacks_limit);
  job_stacks_timer_.async_wait([this, number](const asio::error_code& error) {
    if (error) return;
    job_stacks_told(number, {{},
                             "the node that coordinates the job has not answered within " +
                                 rendezvous::time_text(job_stacks_limit)});
  });
  watched_.ask_job_stacks(
      [this, number](const JobStackLines& told) { job_stacks_told(number, told); });
}

void StallWatch::job_stacks_told(int number, const JobStackLines& told) {
  if (!waiting_ || waiting_->number != number) return;
  Waiting waiting = std::move(*waiting_);
  waiting_.reset();
  job_stacks_timer_.cancel();
  std::string& stacks = notes_[waiting.note].job_stacks;
  if (told.why.empty()) {
    stacks = joined_lines(told.lines, told.lines.size()) + "\n";
    spdlog::info("the report has the stacks of the job's other nodes, too");
  } else {
    stacks = "the other nodes' stacks are missing: " + told.why;
    spdlog::warn("{}", stacks);
  }
  reported(std::move(waiting.facts));
}

StackFacts StallWatch::tell(const StallStep& stall, const Gathered& gathered) {
  StallNote note{.attempt = attempt_.round().attempt,
                 .behind = stall.behind,
                 .why = stall.reason,
                 .stacks = {},
                 .job_stacks = {},
                 .nccl_ras = gathered.ras_said};
  std::vector<std::string> told;
  StackFacts facts;
  stacks_.clear();
  for (const Gathered::Rank& rank : gathered.ranks) {
    const int number = rank.snapshot.rank;
    const bool is_behind =
        std::find(stall.behind.begin(), stall.behind.end(), number) != stall.behind.end();
    const std::string head = stack_headline(rank.snapshot) + (is_behind ? "  <-- behind" : "");
    if (is_in_collective(rank.lines)) facts.in_collective.insert(number);
    if (rank.in_kernel) facts.in_kernel.insert(number);
    stacks_[number] = joined_lines(rank.lines, lines_in_cause);
    note.stacks += head + "\n" + joined_lines(rank.lines, rank.lines.size()) + "\n";
    const std::size_t most = is_behind || stall.behind.empty() ? lines_of_behind : lines_of_other;
    if (told.size() < lines_told_max) told.push_back(head + "\n" + joined_lines(rank.lines, most));
  }
  if (const std::string done = done_already(); !done.empty()) {
    note.stacks += done + "\n";
    told.push_back(done);
  }
  if (gathered.ras_answered) told.push_back("NCCL RAS says:\n" + gathered.ras_said);
  if (!gathered.ras_answered && !gathered.ras_said.empty()) told.push_back(gathered.ras_said);
  if (!options_.quiet) output_.write_line(joined_lines(told, lines_told_max));
  if (notes_.size() < notes_kept) notes_.push_back(std::move(note));
  return facts;
}

// Whoever waits for a rank that has ended with 0 waits for ever, unless its library notices.
std::string StallWatch::done_already() const {
  std::vector<int> done;
  for (const RankSnapshot& rank : watched_.snapshot().ranks) {
    if (rank.state == RankState::Succeeded) done.push_back(rank.rank);
  }
  if (done.empty()) return "";
  return rank_names(done) + (done.size() == 1 ? " has" : " have") + " ended with exit code 0";
}

void StallWatch::lose(const StallStep& stall) {
  events_.stalled(stall.behind, stall.reason, /*counts_as_lost=*/true);
  if (!notes_.empty() && notes_.back().attempt == attempt_.round().attempt) {
    notes_.back().behind = stall.behind;
    notes_.back().why = stall.reason;
  }
  for (const int rank : stall.behind) {
    spdlog::warn("rank {} counts as lost: it gets SIGKILL (--on-stall {})", rank,
                 word_for(options_.on_stall));
  }
  const int base = attempt_.round().rank_base;
  for (const int rank : stall.behind) {
    attempt_.count_as_lost(rank - base, stall.stood, stall.reason + stack_of(rank));
  }
}

std::string StallWatch::stack_of(int rank) const {
  const auto stack = stacks_.find(rank);
  if (stack == stacks_.end() || stack->second.empty()) return "";
  return fmt::format("\nwhere rank {} stood:\n{}", rank, stack->second);
}

}  // namespace ddprun::launcher
