// Why training ended before its end.
#pragma once

#include <stdexcept>

namespace ddprun::trainer {

// Training that cannot go on: a loss that is not a number, or ranks whose models differ.
class TrainingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace ddprun::trainer
