// A folder that one process at a time may write to.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>

#include "worker/unique_fd.h"

namespace ddprun::trainer {

// Held until destruction or the end of the process, however that comes; leaves no file. On a file
// system that cannot lock folders it holds always, and only this host is guarded on some others.
class FolderLock {
 public:
  // Waits so long for somebody else's, or until `give_up` says so.
  explicit FolderLock(const std::filesystem::path& folder, std::chrono::milliseconds wait = {},
                      const std::function<bool()>& give_up = {});
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  bool held() const { return held_; }  // False: somebody else holds it.

  // Whether this is still the folder of that name. False: it was removed, or renamed, and who is
  // locked out of what is there now is another one's business.
  bool is_on(const std::filesystem::path& folder) const;

 private:
  worker::UniqueFd fd_;
  bool held_ = true;
};

}  // namespace ddprun::trainer
