// The judgement is made anew at each look, from how long each rank has stood: nothing has to be
// taken back when one of them goes on.
#include "launcher/stall/stall_detector.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "launcher/stall/rank_names.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {
namespace {

using rendezvous::time_text;
using std::chrono::milliseconds;
using Kind = StallStep::Kind;

constexpr const char* waiting_phase = "\n";  // No program's own word for what it does.
constexpr std::size_t phases_max = 1'024;    // A program may number its phases, for weeks.
constexpr int looks_missed_max = 3;          // A busy machine holds up a look or two.
// A process that waits wakes up now and then (heartbeats of libraries): so much of a processor, and
// a moment of the kernel's own counting, is no work.
constexpr double idle_share = 0.01;
constexpr std::int64_t idle_ms = 20;

std::string phase_key(const RankLook& rank) { return rank.waits ? waiting_phase : rank.phase; }

std::string phase_name(const RankLook& rank) {
  if (rank.waits) return "a collective";
  return rank.phase.empty() ? "a step" : '"' + rank.phase + '"';
}

std::string where(const RankLook& rank) {
  if (rank.said == 0) return "used no processor time and written nothing";
  std::string text = "said nothing";
  if (!rank.phase.empty()) text += " in \"" + rank.phase + "\"";
  if (rank.step >= 0) text += fmt::format(" after step {}", rank.step);
  return text;
}

}  // namespace

void StallDetector::attempt_started(bool all_ranks_here, bool restart_left) {
  all_ranks_here_ = all_ranks_here;
  restart_left_ = restart_left;
  seen_.clear();
  last_look_.reset();
  told_ = Told::Nothing;
  facts_ = {};
}

void StallDetector::reported(StackFacts facts) {
  if (told_ != Told::Asked) return;  // They went on meanwhile.
  told_ = Told::Reported;
  facts_ = std::move(facts);
}

milliseconds StallDetector::limit_of(const RankLook& rank) const {
  if (limits_.timeout) return *limits_.timeout;
  const auto learnt = learnt_.find(phase_key(rank));
  if (rank.done || learnt == learnt_.end()) return limits_.unknown;
  return std::max(limits_.least, limits_.times * learnt->second.longest);
}

StallStep StallDetector::look(const std::vector<RankLook>& ranks, TimePoint now) {
  count(now);
  std::erase_if(seen_, [&](const auto& seen) {
    return std::none_of(ranks.begin(), ranks.end(),
                        [&](const RankLook& rank) { return rank.rank == seen.first; });
  });
  for (const RankLook& rank : ranks) note(rank);
  if (seen_.empty()) return {.reason = "no worker runs"};
  return judge(sorted());
}

void StallDetector::count(TimePoint now) {
  const auto gap = std::chrono::duration_cast<milliseconds>(now - last_look_.value_or(now));
  clock_ += gap > looks_missed_max * limits_.look ? limits_.look : std::max(gap, milliseconds{0});
  last_look_ = now;
}

void StallDetector::note(const RankLook& rank) {
  const auto [found, is_new] = seen_.try_emplace(rank.rank);
  Seen& seen = found->second;
  if (!is_new && !has_moved(seen, rank)) {
    seen.last = rank;
    return;
  }
  // Whoever it was that stood, the job is not where it was. Before learn(), by which the phase may
  // last longer than this one stood.
  if (!is_new && stands(seen)) told_ = Told::Nothing;
  // Whom a debugger takes hold of has not left its phase.
  if (!is_new && rank.state != 't') learn(seen);
  seen = {.last = rank, .since = clock_, .used_since = rank.used_ms};
}

bool StallDetector::has_moved(const Seen& before, const RankLook& now) const {
  if (now.state == 't') return true;  // Somebody looks at it, and takes the time that he needs.
  if (now.said == 0) return !is_idle(before, now);
  return now.said != before.last.said || now.waits != before.last.waits ||
         now.waits_since != before.last.waits_since;
}

bool StallDetector::is_idle(const Seen& before, const RankLook& now) const {
  if (now.written != before.last.written) return false;
  const auto allowed = static_cast<double>(stood(before).count()) * idle_share;
  return static_cast<double>(now.used_ms - before.used_since) <= allowed + idle_ms;
}

// Sampled at looks, so shorter times count as less than they were; limits_.least is above all of
// these.
void StallDetector::learn(const Seen& before) {
  if (before.last.said == 0 || before.last.state == 't') return;
  Learnt& learnt = learnt_[phase_key(before.last)];
  learnt.longest = std::max(learnt.longest, stood(before));
  learnt.left_at = clock_;
  int& times = learnt.times[before.last.rank];
  times = std::min(times + 1, limits_.passes);
  if (learnt_.size() > phases_max) forget_a_phase();
}

// What comes back in each step has been left just now.
void StallDetector::forget_a_phase() {
  learnt_.erase(
      std::min_element(learnt_.begin(), learnt_.end(), [](const auto& one, const auto& other) {
        return one.second.left_at < other.second.left_at;
      }));
}

bool StallDetector::stands(const Seen& rank) const {
  if (rank.last.said == 0 && !limits_.timeout) return false;
  return stood(rank) >= limit_of(rank.last);
}

StallDetector::Sorted StallDetector::sorted() const {
  Sorted ranks;
  for (const auto& [number, rank] : seen_) {
    // A halted one stays where it is, also in a collective that the others have left long ago.
    if (rank.last.state == 'T' && stands(rank)) {
      ranks.halted.push_back(&rank);
    } else if (rank.last.waits) {
      ranks.waiting.push_back(&rank);
    } else {
      (stands(rank) ? ranks.standing : ranks.moving).push_back(&rank);
    }
  }
  return ranks;
}

std::vector<int> StallDetector::numbers(const std::vector<const Seen*>& ranks) {
  std::vector<int> result;
  for (const Seen* rank : ranks) result.push_back(rank->last.rank);
  return result;
}

// Of those that stand, who holds up the others; nobody where they are all alike.
std::vector<const StallDetector::Seen*> StallDetector::behind(const Sorted& ranks) const {
  if (!ranks.halted.empty()) return ranks.halted;
  std::vector<const Seen*> result = those_that_raised(ranks, /*for_certain=*/true);
  if (!result.empty()) return result;
  for (const Seen* rank : ranks.standing) {
    if (facts_.in_collective.contains(rank->last.rank)) continue;
    if (!result.empty() && rank->last.step < result.front()->last.step) result.clear();
    if (result.empty() || rank->last.step == result.front()->last.step) result.push_back(rank);
  }
  if (result.size() != seen_.size()) return result;
  // Where nothing else tells them apart, a traceback that may have been survived does.
  result = those_that_raised(ranks, /*for_certain=*/false);
  return result.size() == seen_.size() ? std::vector<const Seen*>{} : result;
}

std::vector<const StallDetector::Seen*> StallDetector::those_that_raised(const Sorted& ranks,
                                                                         bool for_certain) {
  std::vector<const Seen*> result;
  for (const Seen* rank : ranks.standing) {
    if (!rank->last.raised.empty() && (rank->last.uncaught || !for_certain)) result.push_back(rank);
  }
  return result;
}

// Where all ranks of the job are here, and each waits for others, nobody will come.
bool StallDetector::all_wait_for_each_other(const Sorted& ranks) const {
  const milliseconds limit = limits_.timeout.value_or(limits_.least);
  return all_ranks_here_ && !ranks.waiting.empty() && ranks.waiting.size() == seen_.size() &&
         std::all_of(ranks.waiting.begin(), ranks.waiting.end(),
                     [&](const Seen* rank) { return stood(*rank) >= limit; });
}

bool StallDetector::is_stall(const Sorted& ranks) const {
  if (!ranks.halted.empty() || all_wait_for_each_other(ranks)) return true;
  if (ranks.standing.empty()) return false;
  // Where programs say nothing one of them may be at work for all: rank 0 that saves.
  return ranks.moving.empty() || std::any_of(ranks.standing.begin(), ranks.standing.end(),
                                             [](const Seen* rank) { return rank->last.said != 0; });
}

StallStep StallDetector::judge(const Sorted& ranks) {
  if (!is_stall(ranks)) {
    told_ = Told::Nothing;
    facts_ = {};
    return warn(ranks);
  }
  const auto blamed = behind(ranks);
  const auto& those = !blamed.empty()           ? blamed
                      : !ranks.standing.empty() ? ranks.standing
                                                : ranks.waiting;
  StallStep step{Kind::Report, numbers(blamed), stood(*those.front()), describe(ranks, blamed)};
  if (told_ != Told::Nothing) return lose(ranks, std::move(step));
  told_ = Told::Asked;
  return step;
}

std::string StallDetector::describe(const Sorted& ranks,
                                    const std::vector<const Seen*>& blamed) const {
  if (blamed.empty() && ranks.standing.empty()) {
    return fmt::format("{} {}, for {}", rank_names(numbers(ranks.waiting)),
                       ranks.waiting.size() == 1
                           ? "waits in a collective to which nobody else comes any more"
                           : "wait in collectives for each other",
                       time_text(stood(*ranks.waiting.front())));
  }
  const auto& those = blamed.empty() ? ranks.standing : blamed;
  const Seen& first = *those.front();
  std::string text = fmt::format(
      "{} {} {} for {} (limit {})", rank_names(numbers(those)), those.size() == 1 ? "has" : "have",
      first.last.state == 'T' ? "been halted by a signal" : where(first.last),
      time_text(stood(first)), time_text(limit_of(first.last)));
  if (!blamed.empty() && !first.last.raised.empty()) {
    text += ", after the traceback of " + first.last.raised;
  }
  if (blamed.empty() && those.size() > 1) {
    text += ", all alike: who of them is behind is not known";
  }
  return text + waiting_text(ranks);
}

std::string StallDetector::waiting_text(const Sorted& ranks) const {
  if (ranks.waiting.empty()) return "";
  return fmt::format(", while {} {} for others", rank_names(numbers(ranks.waiting)),
                     ranks.waiting.size() == 1 ? "waits" : "wait");
}

StallStep StallDetector::lose(const Sorted& ranks, StallStep found) {
  found.kind = Kind::Nothing;
  const bool is_told = told_ == Told::Reported || told_ == Told::Spared;
  if (!is_told || limits_.on_stall == OnStall::Report) {
    found.reason = "told already: " + found.reason;
    return found;
  }
  if (limits_.on_stall == OnStall::Auto) return lose_where_cheap(ranks, std::move(found));
  if (found.behind.empty()) {
    found.behind = numbers(ranks.standing.empty() ? ranks.waiting : ranks.standing);
    // Whom they wait for may be on another node.
    if (!all_ranks_here_) {
      std::erase_if(found.behind, [&](int rank) { return facts_.in_collective.contains(rank); });
    }
  }
  if (found.behind.empty()) {
    found.reason = "their stacks say that all of this node wait for others: " + found.reason;
    return found;
  }
  told_ = Told::Lost;
  found.kind = Kind::Lost;
  return found;
}

StallStep StallDetector::lose_where_cheap(const Sorted& ranks, StallStep found) {
  const auto blamed = behind(ranks);
  const std::string why_not = why_spared(ranks, blamed);
  if (!why_not.empty()) {
    found.reason = why_not;
    if (std::exchange(told_, Told::Spared) == Told::Reported) found.kind = Kind::Spared;
    return found;
  }
  for (const Seen* rank : blamed) {
    lost_at_step_ = std::max(lost_at_step_.value_or(rank->last.step), rank->last.step);
  }
  told_ = Told::Lost;
  found.kind = Kind::Lost;
  return found;
}

// "" = it costs the others no more than a step that these are killed.
std::string StallDetector::why_spared(const Sorted& ranks,
                                      const std::vector<const Seen*>& blamed) const {
  if (auto why = why_in_doubt(ranks, blamed); !why.empty()) return why;
  for (const Seen* rank : blamed) {
    if (auto why = why_no_guess(*rank); !why.empty()) return why;
  }
  if (!restart_left_) return "no restart is left";
  if (all_ranks_here_ && blamed.size() == seen_.size()) return "no other rank could go on";
  std::vector<int> cannot_park;
  for (const auto& [number, rank] : seen_) {
    const bool is_blamed = std::find(blamed.begin(), blamed.end(), &rank) != blamed.end();
    if (!is_blamed && !rank.last.can_park) cannot_park.push_back(number);
  }
  if (cannot_park.empty()) return "";
  return fmt::format("{} would not go on in place (docs/failures.md#recovery-in-place)",
                     rank_names(cannot_park));
}

// Whether it is these that hold up all others.
std::string StallDetector::why_in_doubt(const Sorted& ranks,
                                        const std::vector<const Seen*>& blamed) const {
  if (blamed.empty()) return "who is behind is not known for certain";
  if (!ranks.moving.empty()) {
    return fmt::format("{} may be at work", rank_names(numbers(ranks.moving)));
  }
  if (!ranks.halted.empty()) return "";
  // A host that has queued fewer steps than another for their devices is no culprit, nor one that
  // waits for its device by other calls than those by which stacks tell it.
  std::vector<int> others = numbers(ranks.standing);
  std::erase_if(others, [&](int rank) {
    return std::any_of(blamed.begin(), blamed.end(),
                       [&](const Seen* each) { return each->last.rank == rank; });
  });
  if (others.empty()) return "";
  return fmt::format("who is behind is not known for certain, since {} {}, too", rank_names(others),
                     others.size() == 1 ? "stands" : "stand");
}

// Whether its limit means what it should.
std::string StallDetector::why_no_guess(const Seen& rank) const {
  const std::string name = fmt::format("rank {}", rank.last.rank);
  if (rank.last.said == 0) return name + " says nothing of its progress";
  if (rank.last.done) return name + " is behind its last step, where it was never seen before";
  if (const int passes = passes_of(rank.last); passes < limits_.passes) {
    return fmt::format("how long {} may take is not known well: it was left {} times",
                       phase_name(rank.last), passes);
  }
  if (facts_.in_kernel.contains(rank.last.rank)) {
    return name + " waits in the kernel for a disk, a file server or a driver (state D)";
  }
  if (lost_at_step_ && rank.last.step <= *lost_at_step_) {
    return fmt::format("the job has got no further since a rank was lost at step {}",
                       *lost_at_step_);
  }
  return "";
}

// By the rank that was seen to leave it most often: of several that do the same, all leave it each
// time.
int StallDetector::passes_of(const RankLook& rank) const {
  const auto learnt = learnt_.find(phase_key(rank));
  int most = 0;
  if (learnt == learnt_.end()) return most;
  for (const auto& [number, times] : learnt->second.times) most = std::max(most, times);
  return most;
}

StallStep StallDetector::warn(const Sorted& ranks) {
  if (ranks.waiting.empty()) return {.reason = "ranks go on"};
  for (const Seen* rank : ranks.moving) {
    const milliseconds limit = limit_of(rank->last);
    if (rank->last.said == 0 || rank->warned || stood(*rank) < limit / 2) continue;
    // A phase that nobody knows is most often a first one that takes its time.
    if (!limits_.timeout && limit == limits_.unknown) continue;
    seen_.at(rank->last.rank).warned = true;
    return {Kind::Warn,
            {rank->last.rank},
            stood(*rank),
            fmt::format("rank {} has {} for {}{}", rank->last.rank, where(rank->last),
                        time_text(stood(*rank)), waiting_text(ranks))};
  }
  return {.reason = "nobody has stood for long"};
}

}  // namespace ddprun::launcher
