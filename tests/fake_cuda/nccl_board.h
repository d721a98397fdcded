// Where the ranks of a fake communicator meet and through which their bytes go: memory that all
// map, found by what stands in the unique id. Nobody notices there when a rank dies, as between the
// GPUs of one host: its peers' kernels wait until they are aborted.
//
// A collective goes in chunks. Each rank puts its part into its slot, counts `written` up, waits
// for all others to do so, reads their slots, and counts `read` up; a slot is used again when all
// have read it. Messages have a slot for each pair of ranks.
//
// A kernel that is aborted counts as having written and read all that its peers wait for, as NCCL's
// do (postPeer() in its prims_simple): theirs then end, with anything in their memory.
// A peer further along in NCCL's ring gets it for all ranks, so it does here.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ddprun::fake_cuda {

inline constexpr int ranks_max = 8;
inline constexpr std::size_t slot_bytes = 1024 * 1024;
inline constexpr std::size_t channel_bytes = 64 * 1024;

// What a rank called: kernels of unlike calls never end, as with NCCL.
struct Called {
  std::int32_t kind, type, op, root;
  std::uint64_t count;
  bool operator==(const Called&) const = default;
};

struct Board {
  struct alignas(64) Rank {
    std::atomic<int> here;
    std::uint64_t host;
    int device;
    std::atomic<std::uint64_t> written, read;
    std::atomic<bool> gave_up;  // A kernel of it was aborted.
    Called called;
  };
  struct alignas(64) Channel {
    std::atomic<std::uint64_t> sent, received;
    Called called;
    char data[channel_bytes];
  };
  Rank ranks[ranks_max];
  Channel channels[ranks_max][ranks_max];  // [from][to]
  alignas(64) char slots[ranks_max][slot_bytes];
};

// A new board's name, which this process serves until close_board().
ncclUniqueId create_board();
void close_board(const ncclUniqueId& id);
Board* map_board(const ncclUniqueId& id);  // Null: the process that made it is gone.
void unmap_board(Board* board);

}  // namespace ddprun::fake_cuda
