// A file as memory: pages are read when they are touched, shared by all processes of the host, and
// given back when memory is short.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace ddprun::trainer {

// The file must not be made shorter while it is mapped: the kernel then ends the process (SIGBUS).
class MappedFile {
 public:
  // Throws DataError when the file is missing, not a regular file, or cannot be mapped.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace ddprun::trainer
