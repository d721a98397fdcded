// What ended training, in words for a person and for the launcher.
#pragma once

#include <exception>
#include <string>

#include "worker/worker_env.h"

namespace ddprun::trainer {

// The error's own words, without the stack that LibTorch adds. Where the machine had no more memory
// or threads to give they name neither what was tried nor what to do, so that is added; where a GPU
// has failed they name a call that only met it, so CUDA's reason alone is kept.
std::string failure_text(const std::exception& error);

// Behind the rank, of a job of several, unless the words begin with it.
std::string with_rank(const worker::WorkerEnv& env, const std::string& what);

}  // namespace ddprun::trainer
