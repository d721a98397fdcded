// Checkpoints in memory that outlives the worker (worker/restart_memory.h): a restart goes on from
// the newest of any node, without a disk.
//
// One worker of each node writes and reads them. They are what would be in a file, with its
// checksum, and what rank 0 would save: so any node's will do (resume.h).
#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "trainer/formats/safetensors.h"
#include "worker/restart_memory.h"

namespace ddprun::trainer {

class SnapshotMemory {
 public:
  explicit SnapshotMemory(worker::RestartMemory memory) : memory_(std::move(memory)) {}

  // Replaces the older of the two that are kept. Where it does not fit nothing is kept any more
  // from here on: too_small(). From any thread, one at a time.
  void keep(const Safetensors& contents);

  // Those that are whole, the newest first. `name` is for messages.
  std::vector<Safetensors> read(const std::string& name) const;

  void clear() { memory_.clear(); }

  // They may be of weights that give no finite loss: no node is to go on from what it has in
  // memory, this one least. Until clear().
  void mark_ruined();
  bool is_ruined() const;

  // Of one.
  std::size_t bytes_max() const { return memory_.bytes_max(); }
  // One has not fit.
  bool too_small() const { return too_small_; }
  // The same, and true once.
  bool tells_too_small() { return too_small_ && !std::exchange(told_, true); }

 private:
  worker::RestartMemory memory_;
  std::atomic<bool> too_small_ = false;
  bool told_ = false;
};

}  // namespace ddprun::trainer
