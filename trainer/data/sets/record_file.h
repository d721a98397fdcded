// A file of records, read piece by piece: pages are shared by all processes of the host. Not
// mapped, since of a mapped file that becomes shorter, or whose disk fails, the kernel ends the
// process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "worker/unique_fd.h"

namespace ddprun::trainer {

class RecordFile {
 public:
  // Throws DataError when the file is missing, not a regular file, or cannot be opened.
  explicit RecordFile(std::filesystem::path path);

  std::int64_t size() const { return size_; }  // In bytes, when it was opened.

  // Fills `out` with what lies at `offset`. For any number of threads at once. Throws DataError.
  void read(std::int64_t offset, std::span<std::uint8_t> out) const;

 private:
  std::filesystem::path path_;
  worker::UniqueFd fd_;
  std::int64_t size_ = 0;
};

}  // namespace ddprun::trainer
