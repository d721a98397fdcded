// Where the contributions of ranks on other hosts arrive: room for a slice of a chunk from each of
// them, twice, because those to chunk k + 1 come in while those to chunk k are added up. A receive
// for chunk k + 2 is posted once chunk k is combined, so that two are enough.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/cpu/layout.h"

namespace ddprun::worker {

class RemoteSlices {
 public:
  // Takes no memory where there are no remote ranks.
  RemoteSlices(std::size_t chunk_bytes, int world_size, bool any_remote)
      : world_(static_cast<std::size_t>(world_size)),
        slice_bytes_(chunk_bytes / world_ + 2 * line_bytes),  // Slices are rounded up to lines.
        bytes_(any_remote ? 2 * world_ * slice_bytes_ : 0) {}

  std::size_t slice_bytes_max() const { return slice_bytes_; }

  // Room for what `peer` contributes to this rank's slice of `chunk`.
  unsigned char* at(int peer, std::uint64_t chunk) {
    assert(!bytes_.empty());
    return bytes_.data() + (chunk % 2 * world_ + static_cast<std::size_t>(peer)) * slice_bytes_;
  }

 private:
  std::size_t world_;
  std::size_t slice_bytes_;
  std::vector<unsigned char> bytes_;
};

}  // namespace ddprun::worker
