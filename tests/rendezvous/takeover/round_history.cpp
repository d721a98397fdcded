// One function for each fact, which compares it with all facts before it.
#include "tests/rendezvous/takeover/round_history.h"

#include <fmt/format.h>

#include <utility>

namespace ddprun::simulation {

void RoundHistory::violated(std::string what) {
  if (violation_.empty()) violation_ = std::move(what);
}

void RoundHistory::leads(int term, const std::string& who) {
  const auto [leader, first] = leaders_.try_emplace(term, who);
  if (!first) violated(fmt::format("{} and {} lead in term {}", leader->second, who, term));
}

int RoundHistory::closed(int parent, int attempt, const std::vector<Member>& members) {
  Round round{.attempt = attempt, .parent = parent};
  std::map<int, rendezvous::RoundStart> by_rank;
  for (const Member& member : members) {
    round.members.push_back(member.process);
    if (!by_rank.emplace(member.start.group_rank, member.start).second) {
      violated(fmt::format("two nodes of attempt {} have one rank", attempt));
    }
  }
  int next = 0, workers = 0;
  for (const auto& [rank, start] : by_rank) {
    const bool fits = rank == next++ && start.rank_base >= workers &&
                      start.group_world_size == static_cast<int>(members.size());
    if (!fits || (rank == 0 && start.rank_base != 0)) {
      violated(fmt::format("attempt {} has gaps in its ranks", attempt));
    }
    workers = start.rank_base + 1;
  }
  rounds_.push_back(std::move(round));
  return static_cast<int>(rounds_.size()) - 1;
}

void RoundHistory::settled(int round) {
  if (last_settled_ == nothing || descends(round, last_settled_)) {
    last_settled_ = round;
  } else if (!descends(last_settled_, round)) {
    violated(fmt::format("attempts {} and {} are both settled, and neither follows the other",
                         at(last_settled_).attempt, at(round).attempt));
  }
}

bool RoundHistory::workers_started(int round) {
  Round& started = rounds_[static_cast<std::size_t>(round)];
  ++started.with_workers;
  if (started.with_workers != static_cast<int>(started.members.size())) return false;
  check_running(round);
  ++ran_;
  running_ = last_ran_ = round;
  return true;
}

void RoundHistory::workers_ended(int round) {
  --rounds_[static_cast<std::size_t>(round)].with_workers;
  if (running_ == round) running_ = nothing;
}

void RoundHistory::check_running(int round) {
  const int attempt = at(round).attempt;
  if (running_ != nothing && running_ != round) {
    violated(fmt::format("attempts {} and {} run at once", at(running_).attempt, attempt));
  }
  if (last_ran_ != nothing && at(last_ran_).attempt >= attempt) {
    violated(fmt::format("attempt {} runs after attempt {}", attempt, at(last_ran_).attempt));
  }
  for (const int before : {last_ran_, last_settled_}) {
    if (before == nothing || descends(round, before)) continue;
    violated(fmt::format("attempt {} runs, and knows nothing of attempt {}", attempt,
                         at(before).attempt));
  }
}

bool RoundHistory::descends(int round, int from) const {
  while (round != nothing && round != from) round = at(round).parent;
  return round == from;
}

}  // namespace ddprun::simulation
