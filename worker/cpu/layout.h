// How a buffer is cut: into chunks that fit the shared buffers, and each chunk into one slice per
// rank. Pure arithmetic, equal on all ranks.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ddprun::worker {

inline constexpr std::size_t line_bytes = 64;  // A cache line; a multiple of every element's size.

// A range of bytes of the buffer.
struct Range {
  std::size_t first = 0;
  std::size_t bytes = 0;
};

// Where chunks and slices of `bytes` lie. Slices are whole cache lines, so that no two ranks write
// to the same one.
class Layout {
 public:
  Layout(std::size_t bytes, std::size_t chunk_bytes, int ranks)
      : bytes_(bytes), chunk_bytes_(chunk_bytes), ranks_(static_cast<std::size_t>(ranks)) {
    assert(chunk_bytes > 0 && chunk_bytes % line_bytes == 0 && ranks > 0);
  }

  std::uint64_t chunks() const {
    return std::max<std::uint64_t>(1, (bytes_ + chunk_bytes_ - 1) / chunk_bytes_);
  }
  Range chunk(std::uint64_t k) const {
    const std::size_t first = std::min<std::size_t>(k * chunk_bytes_, bytes_);
    return {first, std::min(chunk_bytes_, bytes_ - first)};
  }
  Range slice(std::uint64_t k, int rank) const {
    const Range c = chunk(k);
    const std::size_t share = (c.bytes + ranks_ - 1) / ranks_;
    const std::size_t width = (share + line_bytes - 1) / line_bytes * line_bytes;
    const std::size_t first = std::min(static_cast<std::size_t>(rank) * width, c.bytes);
    return {c.first + first, std::min(width, c.bytes - first)};
  }

 private:
  std::size_t bytes_;
  std::size_t chunk_bytes_;
  std::size_t ranks_;
};

inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace ddprun::worker
