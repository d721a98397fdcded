// A file as one string.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

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

// Puts `content` in the place of whatever file was there, in one step (another name, rename): a
// reader finds the old one or the new one. Not for what must be on the disk when it returns. Throws
// FileAccessError.
void write_whole_file(const std::filesystem::path& path, std::string_view content);

// Whether that could be done now, as far as it shows without content; leaves nothing behind. Throws
// FileAccessError.
void require_place_for_file(const std::filesystem::path& path);

}  // namespace ddprun::trainer
