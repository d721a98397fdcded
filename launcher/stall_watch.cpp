// Stacks are taken in a thread: py-spy and NCCL may take seconds each, and meanwhile this launcher
// has to be heard by the coordinator, or it counts as lost itself.
#include "launcher/stall_watch.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "launcher/processes/child_sessions.h"
#include "launcher/stall/nccl_ras.h"
#include "launcher/watch/job_lines.h"
#include "launcher/watch/process_use.h"
#include "launcher/watch/rank_stacks.h"

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
// On the console: all of one rank that is behind, of the others where they stand.
constexpr std::size_t lines_of_behind = 30;
constexpr std::size_t lines_of_other = 8;
constexpr std::size_t lines_told_max = 90;
constexpr std::size_t lines_in_cause = 16;

StallLimits stall_limits_of(const LaunchOptions& options) {
  StallLimits limits{.timeout = options.stall_timeout, .fails = options.stall_fails};
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
  };
  std::vector<Rank> ranks;
  std::string ras_address;  // "" = is not to be asked.
  std::string ras_said;
  bool ras_answered = false;

  void take() {
    std::vector<AskedWorker> workers;
    for (const Rank& rank : ranks) workers.push_back({rank.snapshot.pid, rank.own_stack});
    auto lines = worker_stack_lines(workers, py_spy_limit);
    for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i].lines = std::move(lines[i]);
    if (ras_address.empty()) return;
    const RasAnswer answer = ask_nccl_ras(ras_address, ras_limit);
    ras_answered = !answer.text.empty();
    ras_said = answer.text + (ras_answered && !answer.why.empty() ? "\n" : "") + answer.why;
  }
};

StallWatch::StallWatch(asio::io_context& io, const LaunchOptions& options, LocalAttempt& attempt,
                       const WatchedJob& watched, EventLog& events, OutputForwarder& output,
                       std::function<AgentState()> state)
    : options_(options),
      attempt_(attempt),
      watched_(watched),
      events_(events),
      output_(output),
      state_(std::move(state)),
      limits_(stall_limits_of(options)),
      detector_(limits_),
      straggler_limits_(straggler_limits_of(options)),
      stragglers_(straggler_limits_),
      timer_(io),
      stacks_call_(io, "whoever tells stacks") {}

void StallWatch::attempt_started() {
  if (!options_.stall_watch) return;
  ++attempts_;
  detector_.attempt_started(attempt_.round().group_world_size <= 1);
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
  const std::string why = describe(*news);
  events_.straggler({news->ranks, news->host, news->over, news->own_s, news->others_s, why});
  spdlog::log(news->over ? spdlog::level::info : spdlog::level::warn, "{}", why);
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
                       gathering_ = false;
                       if (attempt != attempts_) return;
                       // Until it comes back the thread may write there.
                       if (why.empty()) return tell(stall, *gathered);
                       spdlog::warn("stacks: {}", why);
                       detector_.reported({});
                     });
}

void StallWatch::tell(const StallStep& stall, const Gathered& gathered) {
  StallNote note{attempt_.round().attempt, stall.behind, stall.reason, "", gathered.ras_said};
  std::vector<std::string> told;
  std::set<int> in_collective;
  stacks_.clear();
  for (const Gathered::Rank& rank : gathered.ranks) {
    const int number = rank.snapshot.rank;
    const bool is_behind =
        std::find(stall.behind.begin(), stall.behind.end(), number) != stall.behind.end();
    const std::string head = stack_headline(rank.snapshot) + (is_behind ? "  <-- behind" : "");
    if (is_in_collective(rank.lines)) in_collective.insert(number);
    stacks_[number] = joined_lines(rank.lines, lines_in_cause);
    note.stacks += head + "\n" + joined_lines(rank.lines, rank.lines.size()) + "\n";
    const std::size_t most = is_behind || stall.behind.empty() ? lines_of_behind : lines_of_other;
    if (told.size() < lines_told_max) told.push_back(head + "\n" + joined_lines(rank.lines, most));
  }
  detector_.reported(in_collective);
  if (gathered.ras_answered) told.push_back("NCCL RAS says:\n" + gathered.ras_said);
  if (!gathered.ras_answered && !gathered.ras_said.empty()) told.push_back(gathered.ras_said);
  if (!options_.quiet) output_.write_line(joined_lines(told, lines_told_max));
  if (notes_.size() < notes_kept) notes_.push_back(std::move(note));
}

void StallWatch::lose(const StallStep& stall) {
  events_.stalled(stall.behind, stall.reason, /*counts_as_lost=*/true);
  if (!notes_.empty() && notes_.back().attempt == attempt_.round().attempt) {
    notes_.back().behind = stall.behind;
    notes_.back().why = stall.reason;
  }
  for (const int rank : stall.behind) {
    spdlog::warn("rank {} counts as lost: it gets SIGKILL (--on-stall fail)", rank);
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
