// Where nobody can tell of the others, this host's ranks are shown as ever, with a word that they
// are not all.
#include "launcher/watch/job_lines.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>

#include "launcher/status/node_lines.h"
#include "launcher/status/rank_stacks.h"
#include "rendezvous/json/json_text.h"

namespace ddprun::launcher {
namespace {

constexpr std::chrono::milliseconds told_limit{3'000};
// Below the 12 s that a launcher waits for its own node's lines, and it the 15 s for all others'.
constexpr std::chrono::milliseconds stacks_limit{9'000};

rendezvous::Query query_for(const char* what, std::optional<int> rank, int lines = 0) {
  rendezvous::Query query;
  query.what = what;
  query.rank = rank.value_or(-1);
  query.lines = lines;
  return query;
}

std::optional<std::vector<NodeLines>> ask_for_lines(FoundLooks& found, const FoundJob& job,
                                                    const rendezvous::Query& query) {
  const auto answer = found.ask_all_nodes(job, query);
  return answer ? parse_nodes(*answer) : std::nullopt;
}

// What the programs' own library says of their main threads, where they have answered the launcher.
std::map<int, std::string> told_stacks(const FoundJob& job) {
  std::map<int, std::string> stacks;
  const auto answer = ask_job(job, query_for("stacks", std::nullopt), told_limit);
  const nlohmann::json told = rendezvous::json_of(answer.value_or(""));
  if (!told.is_object() || !told.contains("stacks") || !told["stacks"].is_object()) return stacks;
  for (const auto& [key, text] : told["stacks"].items()) {
    int rank = -1;
    std::from_chars(key.data(), key.data() + key.size(), rank);
    if (rank >= 0 && text.is_string()) stacks[rank] = text;
  }
  return stacks;
}

}  // namespace

std::string stack_headline(const RankSnapshot& rank) {
  std::string head = fmt::format("rank {} (pid {})", rank.rank, rank.pid);
  if (!rank.progress) return head;
  if (rank.progress->step >= 0) head += fmt::format(", step {}", rank.progress->step);
  if (!rank.progress->phase.empty()) head += ", " + rank.progress->phase;
  if (rank.progress->waiting_s) head += ", waits for others";
  return head;
}

std::vector<std::string> node_stack_lines(const JobSnapshot& own,
                                          const std::map<int, std::string>& told,
                                          std::optional<int> rank) {
  std::vector<RankSnapshot> shown;
  std::vector<AskedWorker> asked;
  for (const RankSnapshot& each : own.ranks) {
    if (rank && each.rank != *rank) continue;
    shown.push_back(each);
    const auto stack = told.find(each.rank);
    if (!has_ended(each)) asked.push_back({each.pid, stack == told.end() ? "" : stack->second});
  }
  const auto stacks = worker_stack_lines(asked, stacks_limit);
  std::vector<std::string> lines;
  auto stack = stacks.begin();
  for (const RankSnapshot& each : shown) {
    lines.push_back(stack_headline(each));
    if (has_ended(each)) {
      lines.push_back(fmt::format("    has ended: {}", name_of(each.state)));
    } else {
      lines.insert(lines.end(), stack->begin(), stack->end());
      ++stack;
    }
  }
  return lines;
}

std::vector<std::string> job_stack_lines(FoundLooks& found, const FoundJob& job,
                                         std::optional<int> rank) {
  // In a container of its own a job's pids are those of strangers here.
  const bool sees_processes =
      !found.is_remote() && job.snapshot && job.snapshot->launcher_pid == job.pid;
  // Of several nodes the others may not have told this one of themselves yet.
  const bool alone = sees_processes && job.snapshot->others.empty() && job.snapshot->nodes <= 1;
  if (!alone) {
    const auto nodes = ask_for_lines(found, job, query_for("stacks", rank));
    if (nodes) return nodes_text(*nodes);
  }
  if (found.is_remote() || !job.snapshot) return {};
  if (!sees_processes) {
    return {
        "its launcher, which is in a container or another PID namespace, has not answered: ask "
        "there"};
  }
  std::vector<std::string> lines = node_stack_lines(*job.snapshot, told_stacks(job), rank);
  if (!alone) {
    lines.insert(lines.begin(),
                 "the other nodes are left out: this host's launcher has not answered for them");
  }
  return lines;
}

std::vector<std::string> other_log_lines(FoundLooks& found, const FoundJob& job,
                                         std::optional<int> rank, int lines) {
  auto nodes = ask_for_lines(found, job, query_for("logs", rank, lines));
  if (!nodes) return {};
  // This host's files are read whole.
  if (!found.is_remote()) {
    std::erase_if(*nodes, [&](const NodeLines& node) {
      return node.host == job.snapshot->host && node.node_rank == job.snapshot->node_rank;
    });
  }
  return nodes_text(*nodes);
}

}  // namespace ddprun::launcher
