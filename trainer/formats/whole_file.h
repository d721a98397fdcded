// A file as one string.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>

namespace ddprun::trainer {

// The message names the file, what was tried and what came of it.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The file may be sound: it is not there, belongs to somebody else, or its disk failed.
class FileAccessError : public FileError {
 public:
  using FileError::FileError;
};

// Regular files only. Throws FileError.
std::string read_whole_file(const std::filesystem::path& path);

}  // namespace ddprun::trainer
