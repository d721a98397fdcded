// The launcher is asked for what workers tell it alone; all else is looked up from here, so that a
// launcher that hangs can be looked at, too.
#include "launcher/watch/job_stacks.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "launcher/watch/rank_stacks.h"
#include "rendezvous/json_text.h"

namespace ddprun::launcher {
namespace {

constexpr std::chrono::milliseconds own_stacks_limit{3'000};

// What the program's own library says of its main thread, where it has answered the launcher.
std::string own_stack(const nlohmann::json& told, int rank) {
  const std::string key = std::to_string(rank);
  if (!told.is_object() || !told.contains("stacks") || !told["stacks"].is_object() ||
      !told["stacks"].contains(key) || !told["stacks"][key].is_string()) {
    return "";
  }
  return told["stacks"][key];
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

std::vector<std::string> stack_lines(const FoundJob& job, std::optional<int> rank) {
  if (!job.snapshot) return {};
  rendezvous::Query query;
  query.what = "stacks";
  return stack_lines(*job.snapshot, ask_job(job, query, own_stacks_limit).value_or(""), rank);
}

std::vector<std::string> stack_lines(const JobSnapshot& job, const std::string& answer,
                                     std::optional<int> rank) {
  std::vector<std::string> lines;
  const nlohmann::json told = rendezvous::json_of(answer);
  for (const RankSnapshot& each : job.ranks) {
    if (rank && each.rank != *rank) continue;
    lines.push_back(stack_headline(each));
    if (each.state != RankState::Running && each.state != RankState::Parked) {
      lines.push_back(fmt::format("    has ended: {}", name_of(each.state)));
      continue;
    }
    const auto stack = rank_stack_lines(each.pid, own_stack(told, each.rank));
    lines.insert(lines.end(), stack.begin(), stack.end());
  }
  return lines;
}

}  // namespace ddprun::launcher
