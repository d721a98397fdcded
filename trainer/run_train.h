// The program `train` from its command line to its exit code. No LibTorch in this header.
#pragma once

#include <functional>
#include <string>

namespace ddprun::trainer {

struct TrainingJob;

// Exit codes: 0 done; 1 training failed (data, checkpoint, a lost peer); 2 bad usage. The cause is
// on standard error and in the file that the launcher named.
// `on_phase`: TrainingJob's, for tests.
using PhaseHook = std::function<void(const TrainingJob& job, const std::string& phase)>;
int run_train(int argc, const char* const* argv, PhaseHook on_phase = {});

}  // namespace ddprun::trainer
