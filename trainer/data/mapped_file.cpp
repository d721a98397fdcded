// Opens, checks and maps at once, so that no descriptor stays open, whatever fails.
#include "trainer/data/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "trainer/data/dataset.h"

namespace ddprun::trainer {
namespace {

[[noreturn]] void fail(const char* what, const std::filesystem::path& path, int error) {
  throw DataError(fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(error)));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  // Not blocking: a pipe of that name would wait for a writer.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) fail("open", path, errno);
  struct stat status {};
  const bool known = ::fstat(file, &status) == 0;
  const std::size_t size = known ? static_cast<std::size_t>(status.st_size) : 0;
  void* data = nullptr;
  if (known && S_ISREG(status.st_mode) && size > 0) {
    data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  }
  const int error = errno;
  ::close(file);
  if (!known) fail("examine", path, error);
  if (!S_ISREG(status.st_mode)) throw DataError(path.string() + " is not a file");
  if (data == MAP_FAILED) fail("map", path, error);
  bytes_ = {static_cast<const std::uint8_t*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

}  // namespace ddprun::trainer
