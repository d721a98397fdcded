// By pread(), which leaves threads no place in the file to share.
#include "trainer/data/sets/record_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "trainer/data/dataset.h"

namespace ddprun::trainer {
namespace {

[[noreturn]] void fail(const char* what, const std::filesystem::path& path, int error) {
  throw_unread(fmt::format("cannot {} {}", what, path.string()), error);
}

}  // namespace

RecordFile::RecordFile(std::filesystem::path path) : path_(std::move(path)) {
  // Not blocking: a pipe of that name would wait for a writer.
  fd_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd_) fail("open", path_, errno);
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) fail("examine", path_, errno);
  if (!S_ISREG(status.st_mode)) throw DataError(path_.string() + " is not a file");
  size_ = status.st_size;
}

void RecordFile::read(std::int64_t offset, std::span<std::uint8_t> out) const {
  while (!out.empty()) {
    const ssize_t count = ::pread(fd_.get(), out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(fmt::format("read at offset {} of", offset).c_str(), path_, errno);
    if (count == 0) {
      throw DataError(
          fmt::format("{} became shorter while it was read: it had {} bytes, and ends at offset {} "
                      "now; put the "
                      "whole file back and start again",
                      path_.string(), size_, offset));
    }
    out = out.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
}

}  // namespace ddprun::trainer
