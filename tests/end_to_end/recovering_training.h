// A training run whose workers can be told when to die (dying_train.cpp), under ddprun, and the
// weights of the same run when nobody dies.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/end_to_end/small_training.h"
#include "tests/testing/catch.h"

namespace ddprun::testing {

inline constexpr auto recovery_limit = 120s;

// In four shards, with a checkpoint each five steps in folder/name.
inline std::vector<std::string> recovering_training(const TemporaryFolder& folder,
                                                    const std::string& name,
                                                    const std::string& steps,
                                                    const std::vector<std::string>& more = {}) {
  auto command = small_training({"--shards", "4", "--print-freq", "1", "--checkpoint-every", "5",
                                 "--steps", steps, "--checkpoint-dir", folder / name, "--metrics",
                                 folder / (name + ".jsonl")}) +
                 more;
  command[0] = DDPRUN_DYING_TRAIN;
  return command;
}

// Who was which rank in an attempt, by what the workers say.
inline std::map<int, int> pids_of(const std::string& output, int attempt) {
  std::map<int, int> pids;
  const std::string begin = "attempt " + std::to_string(attempt) + " rank ";
  for (std::size_t at = 0; (at = output.find(begin, at)) != output.npos; at += begin.size()) {
    const std::string line = output.substr(at, output.find('\n', at) - at);
    if (contains(line, "is pid ")) pids[number_after(line, begin)] = number_after(line, "is pid ");
  }
  return pids;
}

// What dying_train.cpp reads, and one thread.
inline std::map<std::string, std::string> with_wish(const std::string& wish) {
  auto variables = one_thread;
  variables["DYING_TRAIN"] = wish;
  return variables;
}

// The weights after so many steps of one worker that is left alone.
inline std::string golden_tensors(const std::string& steps) {
  TemporaryFolder folder;
  const auto alone = run(recovering_training(folder, "alone", steps), recovery_limit, one_thread);
  INFO(alone.output);
  REQUIRE(alone.status == 0);
  return newest_tensors(folder / "alone");
}

}  // namespace ddprun::testing
