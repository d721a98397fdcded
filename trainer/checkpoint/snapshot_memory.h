// Checkpoints in memory that outlives the worker (worker/restart_memory.h): a restart on this node
// goes on from the newest, without a disk.
//
// Rank 0 writes and reads them, as it does those on the disk, and gives the state to all: so all
// ranks start from the same. They are what would be in a file, with its checksum.
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

  // Replaces the older of the two that are kept. False, and nothing is kept any more from here on:
  // it does not fit. From any thread, one at a time.
  bool keep(const Safetensors& contents);

  // Those that are whole, the newest first. `name` is for messages.
  std::vector<Safetensors> read(const std::string& name) const;

  void clear() { memory_.clear(); }

  // Of one.
  std::size_t bytes_max() const { return memory_.bytes_max(); }
  // One has not fit.
  bool too_small() const { return too_small_; }

 private:
  worker::RestartMemory memory_;
  std::atomic<bool> too_small_ = false;
};

}  // namespace ddprun::trainer
