// Who is the odd one out: a decision over the hashes that all ranks sent. Core, without LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::trainer {

struct OddRank {
  int rank = 0;
  std::size_t tensor = 0;  // The first one that differs.
};

struct SyncVerdict {
  bool majority = false;     // More than half of the ranks agree on everything: others are odd.
  std::vector<OddRank> odd;  // Without a majority: all ranks. Empty when all agree.
};

// hashes[rank][tensor], as many tensors on every rank.
SyncVerdict judge_ranks(const std::vector<std::vector<std::uint64_t>>& hashes);

// In words, naming ranks and tensors; nothing when all agree. names: by tensor.
std::optional<std::string> describe_verdict(const SyncVerdict& verdict,
                                            const std::vector<std::string>& names,
                                            std::int64_t step);

}  // namespace ddprun::trainer
