// One at a time of several hosts that see one folder, where locks do not reach from host to host
// (folder_lock.h): whoever makes a file in it first.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace ddprun::trainer {

// Which file a claim is. By the time of its content, which no renaming changes: the number of a
// file that is gone may be the next one's.
struct ClaimFile {
  std::uint64_t device = 0;
  std::uint64_t number = 0;
  std::int64_t written_ns = 0;
  bool operator==(const ClaimFile&) const = default;

  // Nothing: no regular file lies there.
  static std::optional<ClaimFile> at(const std::filesystem::path& path);
};

// Removes `file` and no other one that may lie there by now. False: what lies there stays, because
// it cannot be removed.
bool remove_claim(const std::filesystem::path& path, const ClaimFile& file);

// For how long one and the same claim has been in the way. Who waits behind it must not go by how
// long it has waited itself: all would come to their limit at once, and the second would take the
// claim that the first has just made for the dead one. The time is an argument.
class ClaimWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit ClaimWatch(std::chrono::milliseconds limit) : limit_(limit) {}

  // `found` lies there at `now`. True: for so long that its process counts as dead.
  bool is_dead(const std::optional<ClaimFile>& found, Time now);

 private:
  std::chrono::milliseconds limit_;
  std::optional<ClaimFile> seen_;
  std::optional<Time> since_;
};

// For what is done in seconds. Leaves the file if the process is killed meanwhile.
class FolderClaim {
 public:
  // Makes the folder if it is missing. Waits for others' claims, and takes one that is still there
  // after `wait` for that of a dead process. Where no file can be made, or what lies in its place
  // cannot be removed after `wait`, it claims nothing: whoever writes to the folder next will tell.
  FolderClaim(const std::filesystem::path& folder, std::chrono::milliseconds wait);
  ~FolderClaim();
  FolderClaim(const FolderClaim&) = delete;
  FolderClaim& operator=(const FolderClaim&) = delete;

 private:
  std::filesystem::path path_;
  std::optional<ClaimFile> own_;
};

}  // namespace ddprun::trainer
