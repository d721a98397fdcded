// flock, because the kernel takes it back when the process dies, however it dies.
#include "trainer/checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <thread>

namespace ddprun::trainer {
namespace {

// flock() has no limit of its own, and a signal that ended its wait would be another thread's.
constexpr std::chrono::milliseconds look_again{5};

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder, std::chrono::milliseconds wait,
                       const std::function<bool()>& give_up)
    : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  const auto deadline = std::chrono::steady_clock::now() + wait;
  while (fd_ && ::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    held_ = std::chrono::steady_clock::now() < deadline && !(give_up && give_up());
    if (!held_) return;
    std::this_thread::sleep_for(look_again);
  }
}

bool FolderLock::is_on(const std::filesystem::path& folder) const {
  struct stat named {};
  struct stat locked {};
  // Any other error may be of a server that is away for a while.
  if (::stat(folder.c_str(), &named) != 0) return errno != ENOENT && errno != ENOTDIR;
  if (!fd_) return true;
  // ESTALE is how NFS tells that another host has removed it.
  if (::fstat(fd_.get(), &locked) != 0) return errno != ESTALE;
  return named.st_dev == locked.st_dev && named.st_ino == locked.st_ino;
}

}  // namespace ddprun::trainer
