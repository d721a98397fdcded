// The program `train` from its command line to its exit code. No LibTorch in this header.
#pragma once

namespace ddprun::trainer {

// Exit codes: 0 done; 1 training failed (data, checkpoint, a lost peer); 2 bad usage. The cause is
// on standard error and in the file that the launcher named.
int run_train(int argc, const char* const* argv);

}  // namespace ddprun::trainer
