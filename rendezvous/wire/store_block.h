// The bytes of one large value. It is received into its block, kept there, and sent from there: it
// is never copied, and growing moves no bytes but only pages, so that a value of 64 MiB costs 64
// MiB at every moment.
#pragma once

#include <cstddef>
#include <string_view>

namespace ddprun::rendezvous {

class StoreBlock {
 public:
  // From this capacity on a block has pages of its own, which go back to the system with it. The
  // store's memory budget keeps the number of such mappings far below the kernel's limit.
  static constexpr std::size_t mapped_bytes_min = 128u << 10;

  StoreBlock() = default;
  explicit StoreBlock(std::string_view bytes);
  StoreBlock(StoreBlock&& other) noexcept;
  StoreBlock& operator=(StoreBlock&& other) noexcept;
  ~StoreBlock();

  std::string_view view() const { return {data_, size_}; }
  std::size_t size() const { return size_; }
  std::size_t capacity() const { return capacity_; }  // Bytes of memory taken, at most.

  // Makes room for at least `capacity` bytes in all. Throws std::bad_alloc.
  void reserve(std::size_t capacity);
  // The unused room: write there, then commit what was written.
  char* room() { return data_ + size_; }
  std::size_t room_bytes() const { return capacity_ - size_; }
  void commit(std::size_t bytes) { size_ += bytes; }

  // Makes room for the next of `announced` bytes still to come: at least doubles, and stays within
  // what was announced.
  void grow_for(std::size_t announced);
  void append(std::string_view bytes);  // Grows as it must.
  void trim();                          // Gives back the unused room.

 private:
  void resize_memory(std::size_t capacity);

  char* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;  // Mapped if at least mapped_bytes_min, else from malloc.
};

}  // namespace ddprun::rendezvous
