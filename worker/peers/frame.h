// What travels between two ranks over TCP, and how a rank tells whether it fits what it expects.
//
//   frame := header payload      header: FrameHeader as it lies in memory (little-endian hosts)
//
// Every frame says which call of which attempt, of which term, it belongs to. One of an older
// attempt is dropped; any other difference is an error that names both ranks and what each of them
// called.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "rendezvous/attempt_name.h"
#include "worker/communicator.h"

namespace ddprun::worker {

static_assert(std::endian::native == std::endian::little,
              "frames are written as they lie in memory");

enum class CallKind : std::uint8_t {
  AllReduce,
  AllGather,
  ReduceScatter,
  Broadcast,
  Barrier,
  Allocate,
  Message,  // send and recv.
};

// One call of a collective; equal on all ranks that call the same.
struct Call {
  std::uint64_t count = 0;     // Elements (bytes for Allocate).
  std::uint32_t sequence = 0;  // Collectives: 1, 2, ... of this communicator; messages: per pair.
  std::int32_t root = 0;       // Broadcast only.
  DataType type = DataType::UInt8;
  ReduceOp op = ReduceOp::Sum;
  CallKind kind = CallKind::Barrier;
  std::uint8_t reserved[7] = {};  // No padding: calls travel as they lie in memory.

  bool operator==(const Call&) const = default;
};

inline constexpr std::uint32_t frame_magic = 0x32504444;  // "DDP2"

struct FrameHeader {
  std::uint32_t magic = frame_magic;
  std::uint32_t part = 0;  // Which of the frames of this call.
  rendezvous::Epoch epoch = 0;
  Call call;
  std::uint64_t bytes = 0;  // Of the payload.
};
static_assert(sizeof(FrameHeader) == 56 && sizeof(Call) == 32);

// A message that nobody has asked for yet is kept while its receiver is in a collective, so that
// what lies behind it can come: so much of each peer, headers included.
inline constexpr std::size_t kept_bytes_max = 16u << 20;

// "all_reduce(count=1000, float32, sum), call 17"
std::string to_string(const Call& call);

enum class FrameVerdict { Accept, DropStale, Refuse };

struct FrameDecision {
  FrameVerdict verdict;
  std::string reason;  // Empty for Accept.
};

// Compares a header that `peer` sent with the one that `rank` expects.
FrameDecision check_frame(const FrameHeader& expected, const FrameHeader& received, int rank,
                          int peer);

// "rank 0 called A, but rank 1 called B: ..."
std::string describe_mismatch(int rank, const Call& mine, int peer, const Call& theirs);

}  // namespace ddprun::worker
