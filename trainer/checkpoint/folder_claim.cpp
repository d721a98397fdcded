// O_EXCL, rename and link, which network file systems carry out on their server. What lies under a
// name may be another file at each look: so a claim is moved to a name that nobody else has before
// it is removed, and goes back if it was not the one that was meant.
#include "trainer/checkpoint/folder_claim.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <exception>
#include <string>
#include <system_error>
#include <thread>

namespace ddprun::trainer {
namespace {

constexpr std::chrono::milliseconds next_look{20};

ClaimFile claim_of(const struct stat& status) {
  constexpr std::int64_t second_ns = 1'000'000'000;
  return {status.st_dev, status.st_ino,
          std::int64_t{status.st_mtim.tv_sec} * second_ns + status.st_mtim.tv_nsec};
}

// Nothing, with errno: it cannot be made.
std::optional<ClaimFile> make_claim(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return std::nullopt;
  struct stat status {};
  ::fstat(fd, &status);
  ::close(fd);
  return claim_of(status);
}

// "": the kernel gave no random bytes.
std::string name_of_nobody_else(const std::filesystem::path& path) {
  std::uint64_t number = 0;  // The kernel's, which several hosts and containers do not share.
  if (::getrandom(&number, sizeof number, 0) != ssize_t{sizeof number}) return "";
  return path.string() + "." + std::to_string(::getpid()) + "." + std::to_string(number);
}

}  // namespace

std::optional<ClaimFile> ClaimFile::at(const std::filesystem::path& path) {
  struct stat status {};
  // Opened, because a network file system then asks its server, and else believes what it knows.
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  const int got = fd >= 0 ? ::fstat(fd, &status) : ::lstat(path.c_str(), &status);
  if (fd >= 0) ::close(fd);
  if (got != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return claim_of(status);
}

bool remove_claim(const std::filesystem::path& path, const ClaimFile& file) {
  const std::string aside = name_of_nobody_else(path);
  if (aside.empty()) return false;
  if (::rename(path.c_str(), aside.c_str()) != 0) return errno == ENOENT;
  if (ClaimFile::at(aside) == file) return ::unlink(aside.c_str()) == 0;
  // Another one's, which goes back, but not over one that has come since.
  if (::link(aside.c_str(), path.c_str()) == 0) return ::unlink(aside.c_str()) == 0;
  if (errno == EEXIST) return ::unlink(aside.c_str()) == 0;
  return ::rename(aside.c_str(), path.c_str()) == 0;  // Where there are no links.
}

bool ClaimWatch::is_dead(const std::optional<ClaimFile>& found, Time now) {
  if (!since_ || found != seen_) since_ = now;
  seen_ = found;
  return now - *since_ >= limit_;
}

FolderClaim::FolderClaim(const std::filesystem::path& folder, std::chrono::milliseconds wait)
    : path_(folder / "saving.claim") {
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  ClaimWatch watch(wait);
  for (;;) {
    own_ = make_claim(path_);
    if (own_ || errno != EEXIST) return;
    const auto found = ClaimFile::at(path_);
    if (!watch.is_dead(found, std::chrono::steady_clock::now())) {
      std::this_thread::sleep_for(next_look);
    } else if (!found || !remove_claim(path_, *found)) {
      return;
    }
  }
}

FolderClaim::~FolderClaim() {
  try {
    if (own_ && ClaimFile::at(path_) == own_) remove_claim(path_, *own_);
  } catch (const std::exception&) {  // No memory for a name: it stays, as that of a dead process.
  }
}

}  // namespace ddprun::trainer
