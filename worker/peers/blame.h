// Whom a timeout is to be blamed on. A rank that waits sees only whom it waits for, and that one
// may be waiting itself:
//
//   rank 0 --waits for--> rank 2 --waits for--> rank 1, stopped        the cause is rank 1
//
// So the rank that timed out asks all others what they wait for, and follows the answers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "worker/peers/rank_set.h"

namespace ddprun::worker {

// "rank 1, rank 3"; of very many the first ones, and how many more. names[r] stands for rank r,
// where it is given: "rank 1 (pid 4127 on 10.0.0.2)".
std::string names_of(const RankSet& ranks, const std::vector<std::string>& names = {});

struct Blame {
  RankSet silent;    // Gave no answer: stopped, or cut off.
  RankSet absent;    // Answered that they are in no collective.
  RankSet circular;  // Only if the others are empty: these wait for each other.
};

// `waits_for` are the ranks that `rank` waits for. Element r of `answers`: whom rank r waits for,
// empty set: it is in no collective, nothing: it did not answer.
Blame find_blame(int rank, const RankSet& waits_for,
                 const std::vector<std::optional<RankSet>>& answers);

// "rank 1 did not answer (stopped, or cut off from the others)".
std::string to_string(const Blame& blame, const std::vector<std::string>& names = {});

}  // namespace ddprun::worker
