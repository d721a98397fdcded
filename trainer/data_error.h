// What is wrong with a user's data: a file, or one image.
#pragma once

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

namespace ddprun::trainer {

// A file that is missing, truncated or not what its name says. The message names the file, the
// offset where one matters, what was found and what was expected.
class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A file that may be sound, and that the machine or a server did not give: another attempt may get
// it.
class UnreadDataError : public DataError {
 public:
  using DataError::DataError;
};

// Whether a file's name, or whose it is, says why it cannot be read: so it is for every attempt.
inline bool is_of_the_name(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ENXIO:  // A socket.
    case ELOOP:
    case ENAMETOOLONG:
    case EACCES:
    case EPERM:
      return true;
    default:
      return false;
  }
}

// `failed`: what was tried and on which file; `error`: the errno that came of it.
[[noreturn]] inline void throw_unread(const std::string& failed, int error,
                                      const std::string& advice = "") {
  const std::string text = failed + ": " + std::generic_category().message(error);
  if (is_of_the_name(error)) throw DataError(text + advice);
  throw UnreadDataError(text + ": the file system or this process failed, not the data");
}

// One image that cannot be read, while others may be.
class ImageError : public DataError {
 public:
  using DataError::DataError;
};

}  // namespace ddprun::trainer
