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

// Regular files only. Throws FileError.
std::string read_whole_file(const std::filesystem::path& path);

}  // namespace ddprun::trainer
