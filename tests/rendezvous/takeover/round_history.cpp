// One function for each fact, which compares it with all facts before it.
#include "tests/rendezvous/takeover/round_history.h"

#include <fmt/format.h>

#include <utility>

namespace ddprun::simulation {

void RoundHistory::violated(std::string what) {
  if (violation_.empty()) violation_ = std::move(what);
}

void RoundHistory::leads(int job, int term, const std::string& who) {
  const auto [leader, first] = leaders_.try_emplace({job, term}, who);
  if (!first) violated(fmt::format("{} and {} lead in term {}", leader->second, who, term));
}

int RoundHistory::closed(int job, int parent, int attempt, const std::vector<Member>& members) {
  Round round{.job = job, .attempt = attempt, .parent = parent};
  std::map<int, rendezvous::RoundStart> by_rank;
  for (const Member& member : members) {
    round.members.push_back(member.process);
    if (!by_rank.emplace(member.start.group_rank, member.start).second) {
      violated(fmt::format("two nodes of attempt {} have one rank", attempt));
    }
  }
  int next = 0, workers = 0;
  for (const auto& [rank, start] : by_rank) {
    const bool fits = rank == next++ && start.rank_base == workers && start.nproc > 0 &&
                      start.group_world_size == static_cast<int>(members.size());
    if (!fits) violated(fmt::format("attempt {} has gaps in its ranks", attempt));
    workers += start.nproc;
  }
  for (const auto& [rank, start] : by_rank) {
    if (start.world_size == workers) continue;
    violated(
        fmt::format("attempt {} has {} workers and not {}", attempt, workers, start.world_size));
  }
  rounds_.push_back(std::move(round));
  return static_cast<int>(rounds_.size()) - 1;
}

void RoundHistory::settled(int round) {
  int& last = last_[at(round).job].settled;
  if (last == nothing || descends(round, last)) {
    last = round;
  } else if (!descends(last, round)) {
    violated(fmt::format("attempts {} and {} are both settled, and neither follows the other",
                         at(last).attempt, at(round).attempt));
  }
}

bool RoundHistory::workers_started(int round, const Workers& workers) {
  Round& started = rounds_[static_cast<std::size_t>(round)];
  ++started.with_workers;
  for (const Workers& others : started.started) {
    const bool apart = workers.rank_base + workers.count <= others.rank_base ||
                       others.rank_base + others.count <= workers.rank_base;
    if (apart || workers.process == others.process) continue;
    violated(fmt::format("two workers of attempt {} have one rank", started.attempt));
  }
  started.started.push_back(workers);
  if (started.with_workers != static_cast<int>(started.members.size())) return false;
  check_running(round);
  ++ran_;
  running_ = last_[started.job].ran = round;
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
  const Last last = last_[at(round).job];
  if (last.ran != nothing && at(last.ran).attempt >= attempt) {
    violated(fmt::format("attempt {} runs after attempt {}", attempt, at(last.ran).attempt));
  }
  for (const int before : {last.ran, last.settled}) {
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
