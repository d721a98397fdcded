// What is wrong with a user's data: a file, or one image.
#pragma once

#include <stdexcept>

namespace ddprun::trainer {

// A file that is missing, truncated or not what its name says. The message names the file, the
// offset where one matters, what was found and what was expected.
class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One image that cannot be read, while others may be.
class ImageError : public DataError {
 public:
  using DataError::DataError;
};

}  // namespace ddprun::trainer
