// One at a time of several hosts that see one folder, where locks do not reach from host to host
// (folder_lock.h): whoever makes a file in it first.
#pragma once

#include <chrono>
#include <filesystem>

namespace ddprun::trainer {

// For what is done in seconds. Leaves the file if the process is killed meanwhile.
class FolderClaim {
 public:
  // Makes the folder if it is missing. Waits for another's claim, and takes one that is still there
  // after `wait` for that of a dead process. Where no file can be made it claims nothing: whoever
  // writes to the folder next will tell.
  FolderClaim(const std::filesystem::path& folder, std::chrono::milliseconds wait);
  ~FolderClaim();
  FolderClaim(const FolderClaim&) = delete;
  FolderClaim& operator=(const FolderClaim&) = delete;

 private:
  std::filesystem::path path_;
  bool is_ours_ = false;
};

}  // namespace ddprun::trainer
