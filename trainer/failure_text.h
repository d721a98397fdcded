// What ended training, in words for a person and for the launcher.
#pragma once

#include <exception>
#include <string>

namespace ddprun::trainer {

// The error's own words, without the stack that LibTorch adds. Where the machine had no more memory
// or threads to give they name neither what was tried nor what to do, so that is added.
std::string failure_text(const std::exception& error);

}  // namespace ddprun::trainer
