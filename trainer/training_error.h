// Why training ended before its end.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace ddprun::trainer {

// Training that cannot go on: a loss that is not a number, or ranks whose models differ.
class TrainingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The loss of a step is infinite or not a number. The weights that it was computed with are those
// after the step before.
class BadLossError : public TrainingError {
 public:
  BadLossError(const std::string& what, std::int64_t step) : TrainingError(what), step_(step) {}
  std::int64_t step() const { return step_; }

 private:
  std::int64_t step_;
};

}  // namespace ddprun::trainer
