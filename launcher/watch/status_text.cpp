// Every width is counted, for a terminal of 80 columns must hold a rank's line with all that is
// known of it.
#include "launcher/watch/status_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "rendezvous/control/first_cause.h"
#include "rendezvous/control/visible_text.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {
namespace {

constexpr double silent_least_s = 2;      // A rank that says nothing for longer stands ...
constexpr double silent_least_steps = 3;  // ... if it is as many steps of its own.

std::string shown(const std::string& text) {
  return rendezvous::visible_text(text, rendezvous::Lines::Escape);
}

// Of what others named as they liked; what is cut off is shown as "...".
std::string cut(const std::string& text, std::size_t columns) {
  if (text.size() <= columns) return text;
  if (columns <= 3) return text.substr(0, columns);
  std::size_t end = columns - 3;
  // Not in the middle of a character of several bytes.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

std::string duration(double seconds) {
  return rendezvous::time_text(std::chrono::milliseconds(std::llround(seconds * 1e3)));
}

std::string short_time(double seconds) {
  if (seconds <= 0) return "-";
  if (seconds < 0.01) return fmt::format("{:.1f}ms", seconds * 1e3);
  if (seconds < 1) return fmt::format("{:.0f}ms", seconds * 1e3);
  return seconds < 100 ? fmt::format("{:.1f}s", seconds) : fmt::format("{:.0f}s", seconds);
}

std::string short_count(double count) {
  if (count < 9'999.5) return fmt::format("{:.0f}", count);
  return count < 9'999'500 ? fmt::format("{:.0f}k", count / 1e3)
                           : fmt::format("{:.0f}M", count / 1e6);
}

std::string short_bytes(std::int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1'000 ? fmt::format("{:.0f}M", mib) : fmt::format("{:.1f}G", mib / 1'024);
}

std::string share(double part, double whole) {
  return whole <= 0 ? "-" : fmt::format("{:.0f}%", 100 * part / whole);
}

bool stands(const RankProgress& progress) {
  const double age = progress.age_s.value_or(0);
  return age >= silent_least_s && age > silent_least_steps * progress.step_s;
}

const char* kernel_word(char state) {
  switch (state) {
    case 'R':
      return "running";
    case 'D':
      return "disk wait";
    case 'T':
    case 't':
      return "halted";
    case 'Z':
    case 'X':
      return "ending";
    case 'S':
    case 'I':
      return "sleeping";
    default:
      return "gone";
  }
}

std::string doing(const RankSnapshot& rank) {
  switch (rank.state) {
    case RankState::Parked:
    case RankState::Succeeded:
    case RankState::Stopped:
      return name_of(rank.state);
    case RankState::Failed:
      return rank.signal != 0 ? rendezvous::signal_name(rank.signal)
                              : fmt::format("exit {}", rank.exit_code);
    case RankState::Running:
      break;
  }
  std::string word = rank.progress && !rank.progress->phase.empty() ? shown(rank.progress->phase)
                                                                    : kernel_word(rank.use.state);
  // A process that is halted by a signal or a debugger does nothing of what it said last.
  if (rank.use.state == 'T' || rank.use.state == 't') word = kernel_word(rank.use.state);
  if (rank.progress && stands(*rank.progress)) {
    word += fmt::format(" {:.0f}s", *rank.progress->age_s);
  }
  return word;
}

// The ranks of one node, at one moment of its own clock.
struct NodeMoment {
  const std::vector<RankSnapshot>* ranks = nullptr;
  double taken_s = 0;
  double since_s = 0;
};

struct NodeLook {
  NodeMoment now;
  std::optional<NodeMoment> before;
};

NodeMoment moment_of(const JobSnapshot& job) { return {&job.ranks, job.taken_s, job.since_s}; }
NodeMoment moment_of(const NodeView& node) { return {&node.ranks, node.taken_s, node.since_s}; }

NodeLook look_of(const Look& look) {
  NodeLook own{moment_of(look.now), std::nullopt};
  if (look.before) own.before = moment_of(*look.before);
  return own;
}

NodeLook look_of(const NodeView& node, const Look& look) {
  NodeLook own{moment_of(node), std::nullopt};
  if (!look.before) return own;
  for (const NodeView& earlier : look.before->others) {
    if (!is_same_launcher(earlier, node)) continue;
    if (earlier.taken_s < node.taken_s) own.before = moment_of(earlier);
  }
  return own;
}

std::string cpu_of(const RankSnapshot& rank, const NodeLook& look) {
  if (rank.state != RankState::Running) return "-";
  if (look.before) {
    for (const RankSnapshot& earlier : *look.before->ranks) {
      if (earlier.pid != rank.pid) continue;
      const double between = look.now.taken_s - look.before->taken_s;
      return share(std::max(0.0, rank.use.cpu_s - earlier.use.cpu_s), between);
    }
  }
  return share(rank.use.cpu_s, look.now.since_s);
}

constexpr const char* rank_columns =
    "{:>4} {:>7} {:>11} {:<15} {:>6} {:>6} {:>5} {:>5} {:>5} {:>6}";

// The GPU's memory has the place of the machine's, which is seldom what a job on GPUs runs out of.
constexpr const char* gpu_rank_columns =
    "{:>4} {:>7} {:>11} {:<11} {:>6} {:>6} {:>5} {:>5} {:>5} {:>4} {:>6}";

std::string rank_head(bool with_gpus) {
  if (with_gpus) {
    return fmt::format(gpu_rank_columns, "RANK", "PID", "STEP", "DOING", "IMG/S", "TIME", "DATA",
                       "WAIT", "CPU", "GPU", "GMEM");
  }
  return fmt::format(rank_columns, "RANK", "PID", "STEP", "DOING", "IMG/S", "TIME", "DATA", "WAIT",
                     "CPU", "RSS");
}

bool has_gpus(const JobSnapshot& job) {
  const auto ranks = all_ranks(job);
  return std::any_of(ranks.begin(), ranks.end(),
                     [](const RankSnapshot& rank) { return rank.gpu.has_value(); });
}

std::string rank_row(const RankSnapshot& rank, const NodeLook& look, bool with_gpus) {
  std::string step = "-", images = "-", time = "-", data = "-", wait = "-";
  if (rank.progress) {
    const RankProgress& said = *rank.progress;
    if (said.step >= 0) step = std::to_string(said.step);
    const std::string all = fmt::format("{}/{}", step, said.total_steps);
    if (said.step >= 0 && said.total_steps > 0 && all.size() <= 11) step = all;
    // What was true of steps that are long over is no rate of now.
    const bool goes_on = !stands(said) && rank.state == RankState::Running;
    if (goes_on && said.images_per_s > 0) images = short_count(said.images_per_s);
    if (goes_on && said.step_s > 0) {
      time = short_time(said.step_s);
      data = share(said.data_s, said.step_s);
      wait = share(said.wait_s, said.step_s);
    }
  }
  if (with_gpus) {
    const GpuUse gpu = rank.gpu.value_or(GpuUse{});
    return fmt::format(gpu_rank_columns, rank.rank, rank.pid, step, cut(doing(rank), 11), images,
                       time, data, wait, cpu_of(rank, look),
                       gpu.busy < 0 ? "-" : fmt::format("{:.0f}%", 100 * gpu.busy),
                       shown_bytes(gpu) < 0 ? "-" : short_bytes(shown_bytes(gpu)));
  }
  return fmt::format(rank_columns, rank.rank, rank.pid, step, cut(doing(rank), 15), images, time,
                     data, wait, cpu_of(rank, look),
                     has_ended(rank) ? "-" : short_bytes(rank.use.rss_bytes));
}

std::string job_name(const JobSnapshot& job) {
  // What a static job is called to which nobody gave a name.
  return job.run_id.empty() || job.run_id == "none" ? fmt::format("pid {}", job.launcher_pid)
                                                    : shown(job.run_id);
}

std::string ranks_here(const JobSnapshot& job) {
  return job.workers == 1
             ? fmt::format("rank {}", job.first_rank)
             : fmt::format("ranks {}-{}", job.first_rank, job.first_rank + job.workers - 1);
}

std::string state_line(const JobSnapshot& job) {
  const bool checked = job.state == NodeState::Checking;
  if (job.attempts == 0) {
    return fmt::format("waiting for {} for {}", checked ? "its --node-check" : "other nodes",
                       duration(job.since_s));
  }
  // The time is the attempt's.
  const bool runs = job.state == NodeState::Running;
  std::string text = checked ? "waiting for its --node-check after attempt "
                     : runs  ? fmt::format("running for {}: attempt ", duration(job.since_s))
                             : fmt::format("{}: attempt ", name_of(job.state));
  text += std::to_string(job.attempt);
  if (!runs && !checked) text += fmt::format(", {} old", duration(job.since_s));
  if (job.max_restarts > 0) text += fmt::format(" (--max-restarts {})", job.max_restarts);
  if (job.nodes > 1) text += fmt::format(", node {} of {}", job.node_rank, job.nodes);
  text += fmt::format(", {} of {}", ranks_here(job), job.world_size);
  if (job.spares > 0) text += fmt::format(", {} of {} spares ready", job.spares_ready, job.spares);
  return text;
}

// What the ranks have in common; "" when they say nothing.
std::string progress_line(const JobSnapshot& job) {
  const RankProgress* furthest = nullptr;
  double images_per_s = 0;
  const std::vector<RankSnapshot> ranks = all_ranks(job);
  for (const RankSnapshot& rank : ranks) {
    if (!rank.progress) continue;
    if (furthest == nullptr || rank.progress->step > furthest->step) furthest = &*rank.progress;
    if (rank.state == RankState::Running && !stands(*rank.progress)) {
      images_per_s += rank.progress->images_per_s;
    }
  }
  if (furthest == nullptr || furthest->step < 0) return "";
  std::string text = fmt::format("step {}", furthest->step);
  if (furthest->total_steps > 0) text += fmt::format(" of {}", furthest->total_steps);
  if (furthest->epoch > 0) text += fmt::format(", epoch {}", furthest->epoch);
  if (furthest->loss) text += fmt::format(", loss {:.4g}", *furthest->loss);
  if (images_per_s > 0) {
    text += fmt::format(", {} images/s{}", short_count(images_per_s),
                        job.nodes > 1 && job.others.empty() ? " here" : "");
  }
  return text;
}

// The first of them, and how many there are besides.
std::string slowed_gpus_line(const JobSnapshot& job) {
  std::string first;
  int others = -1;
  for (const RankSnapshot& rank : all_ranks(job)) {
    if (!rank.gpu || !is_slowed(rank.gpu->clock)) continue;
    if (++others > 0) continue;
    first = fmt::format("slowed down: GPU {} of rank {}, {}", rank.gpu->index, rank.rank,
                        slowdown_text(rank.gpu->clock));
  }
  return others > 0 ? fmt::format("{}; and {} more", first, others) : first;
}

// The failures stand below the ranks, and so, of many ranks, below a screen of 24 rows.
std::string last_failure_line(const JobSnapshot& job) {
  constexpr std::size_t ranks_above_failures_max = 8;
  if (job.failures.empty() || all_ranks(job).size() <= ranks_above_failures_max) return "";
  const std::string how_many =
      job.failures_total > 1 ? fmt::format(" of {}", job.failures_total) : "";
  return fmt::format("last failure{}: {}", how_many, shown(job.failures.back().text));
}

std::vector<std::string> head_lines(const JobSnapshot& job) {
  std::vector<std::string> lines = {headline(job), "  " + state_line(job)};
  if (const std::string text = progress_line(job); !text.empty()) lines.push_back("  " + text);
  if (const auto slowest = slowest_of(all_ranks(job))) {
    lines.push_back(fmt::format("  slowest: rank {} {}", slowest->rank, slowest->why));
  }
  for (const std::string& text : {slowed_gpus_line(job), last_failure_line(job)}) {
    if (!text.empty()) lines.push_back("  " + text);
  }
  if (!job.log_dir.empty() && job.others.empty()) {
    lines.push_back("  logs: " + shown(job.log_dir));
  }
  return lines;
}

std::vector<std::string> failure_lines(const JobSnapshot& job, long zone_s) {
  std::vector<std::string> lines;
  if (job.failures_total == 0) return lines;
  const int untold = job.failures_total - static_cast<int>(job.failures.size());
  lines.push_back(fmt::format("  failures so far: {}{}", job.failures_total,
                              untold > 0 ? ", the last ones:" : ""));
  for (const SeenFailure& failure : job.failures) {
    lines.push_back(fmt::format("  {} attempt {}: {}", clock_text(failure.time_unix_s, zone_s),
                                failure.attempt, shown(failure.text)));
    if (!failure.what.empty()) lines.push_back("    " + shown(failure.what));
  }
  return lines;
}

std::string node_name(int node_rank, const std::string& host) {
  return node_rank < 0 ? fmt::format("node on {}", shown(host))
                       : fmt::format("node {} on {}", node_rank, shown(host));
}

std::string node_line(const NodeView& node) {
  std::string text = node_name(node.node_rank, node.host) + ": ";
  if (!node.age_s && node.silent_s.value_or(0) > node_silent_s) {
    return text + fmt::format("silent for {}", duration(*node.silent_s));
  }
  // As an older ddprun, or one that has just come.
  if (!node.age_s) return text + "tells nothing";
  if (is_silent(node)) {
    const double silent_s = std::max(*node.age_s, node.silent_s.value_or(0));
    text += fmt::format("silent for {}, was ", duration(silent_s));
  }
  text += fmt::format("{}, launcher {}", name_of(node.state), node.launcher_pid);
  return node.log_dir.empty() ? text : text + ", logs " + shown(node.log_dir);
}

std::string own_node_line(const JobSnapshot& job) {
  std::string text = fmt::format("{}: {}, launcher {}", node_name(job.node_rank, job.host),
                                 name_of(job.state), job.launcher_pid);
  return job.log_dir.empty() ? text : text + ", logs " + shown(job.log_dir);
}

// By node, in the order of their ranks.
void add_tree(const Look& look, std::vector<std::string>& lines,
              const std::function<void(const NodeLook&)>& add_ranks) {
  bool own_is_told = false;
  const auto tell_own = [&] {
    own_is_told = true;
    lines.push_back(own_node_line(look.now));
    add_ranks(look_of(look));
  };
  for (const NodeView& node : look.now.others) {
    const bool behind = node.node_rank < 0 || node.node_rank > look.now.node_rank;
    if (!own_is_told && look.now.node_rank >= 0 && behind) tell_own();
    lines.push_back(node_line(node));
    add_ranks(look_of(node, look));
  }
  if (!own_is_told) tell_own();
}

std::vector<std::string> job_lines(const Look& look, long zone_s) {
  std::vector<std::string> lines = head_lines(look.now);
  const bool with_gpus = has_gpus(look.now);
  const auto add_ranks = [&](const NodeLook& node) {
    for (const RankSnapshot& rank : *node.now.ranks) {
      lines.push_back(rank_row(rank, node, with_gpus));
    }
  };
  if (!look.now.ranks.empty() || !look.now.others.empty()) lines.push_back(rank_head(with_gpus));
  if (look.now.others.empty()) {
    add_ranks(look_of(look));
  } else {
    add_tree(look, lines, add_ranks);
  }
  for (std::string& line : failure_lines(look.now, zone_s)) lines.push_back(std::move(line));
  return lines;
}

}  // namespace

std::string clock_text(std::int64_t time_unix_s, long zone_s) {
  constexpr std::int64_t day_s = 86'400;
  const std::int64_t of_day = ((time_unix_s + zone_s) % day_s + day_s) % day_s;
  return fmt::format("{:02}:{:02}:{:02}", of_day / 3'600, of_day / 60 % 60, of_day % 60);
}

std::string status_text(const Look& look, std::size_t columns, long zone_s) {
  std::string text;
  for (const std::string& line : job_lines(look, zone_s)) text += cut(line, columns) + "\n";
  return text;
}

std::string list_text(const std::vector<JobSnapshot>& jobs, std::size_t columns) {
  constexpr const char* columns_of = "{:>7} {:<20} {:<10} {:>7} {:>9} {:>8}  {}";
  std::string text =
      fmt::format(columns_of, "PID", "JOB", "STATE", "ATTEMPT", "RANKS", "FAILURES", "PROGRAM") +
      "\n";
  for (const JobSnapshot& job : jobs) {
    const std::string line = fmt::format(
        columns_of, job.launcher_pid, cut(job_name(job), 20), name_of(job.state), job.attempt,
        fmt::format("{}/{}", job.workers, std::max(job.world_size, job.workers)),
        job.failures_total, shown(job.program));
    text += cut(line, columns) + "\n";
  }
  return text;
}

std::vector<std::string> jobs_lines(const std::vector<Look>& looks, long zone_s) {
  std::vector<std::string> lines;
  for (const Look& look : looks) {
    if (!lines.empty()) lines.emplace_back();
    for (std::string& line : job_lines(look, zone_s)) lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> screen_of(const std::vector<std::string>& lines, const std::string& keys,
                                   std::size_t rows, std::size_t columns, std::size_t& scroll) {
  if (rows == 0) return {};
  const std::size_t room = rows - 1;  // The last line is for the keys.
  const std::size_t most = lines.size() > room ? lines.size() - room : 0;
  scroll = std::min(scroll, most);
  const std::size_t end = std::min(scroll + room, lines.size());
  std::vector<std::string> screen;
  for (std::size_t i = scroll; i < end; ++i) screen.push_back(cut(lines[i], columns));
  screen.resize(room);
  std::string last = keys;
  if (most > 0) last += fmt::format("  up/down: lines {}-{} of {}", scroll + 1, end, lines.size());
  screen.push_back(cut(last, columns));
  return screen;
}

std::string headline(const JobSnapshot& job) {
  return fmt::format("{}: {} (launcher {} on {})", job_name(job), shown(job.program),
                     job.launcher_pid, shown(job.host));
}

bool shows(const JobSnapshot& job, const JobSnapshot& other) {
  return job.run_id == other.run_id &&
         std::any_of(job.others.begin(), job.others.end(),
                     [&](const NodeView& node) { return is_same_launcher(node, other); });
}

bool is_called(const JobSnapshot& job, const std::string& word) {
  const std::string program = job.program.substr(job.program.rfind('/') + 1);
  return word == std::to_string(job.launcher_pid) || word == job.run_id || word == job.program ||
         word == program;
}

}  // namespace ddprun::launcher
