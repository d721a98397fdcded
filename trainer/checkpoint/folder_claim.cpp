// O_EXCL, which network file systems carry out on their server.
#include "trainer/checkpoint/folder_claim.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <thread>

namespace ddprun::trainer {
namespace {

constexpr std::chrono::milliseconds look_again{20};

}  // namespace

FolderClaim::FolderClaim(const std::filesystem::path& folder, std::chrono::milliseconds wait)
    : path_(folder / "saving.claim") {
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  auto until = std::chrono::steady_clock::now() + wait;
  for (;;) {
    const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) {
      ::close(fd);
      is_ours_ = true;
      return;
    }
    if (errno != EEXIST) return;
    if (std::chrono::steady_clock::now() >= until) {
      ::unlink(path_.c_str());
      until += wait;
    } else {
      std::this_thread::sleep_for(look_again);
    }
  }
}

FolderClaim::~FolderClaim() {
  if (is_ours_) ::unlink(path_.c_str());
}

}  // namespace ddprun::trainer
