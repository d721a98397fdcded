// The answers for one connection, in the c10d encoding, ready to be sent: small ones side by side
// in one buffer, large values by reference, so that a value that thousands of clients fetch is in
// memory once.
//
// An empty value, an answer of one byte and one of eight cost no allocation once the buffer is
// warm. Not thread-safe. A core: no sockets, threads or clock.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/store/memory_budget.h"
#include "rendezvous/wire/store_block.h"
#include "rendezvous/wire/wire.h"

namespace ddprun::rendezvous {

// A large value, in memory once however many replies it is part of. It has its share of the memory
// budget until the last of them has been sent, whatever the store holds by then.
struct SharedBlock {
  SharedBlock(StoreBlock bytes, MemoryBudget& of, std::size_t taken)
      : block(std::move(bytes)), budget(of), charged(taken) {}
  ~SharedBlock() { budget.give(charged); }
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;

  StoreBlock block;
  MemoryBudget& budget;
  std::size_t charged;  // Already taken from the budget.
};

// A value of the store: small ones are held here, large ones are shared with the replies that are
// still being sent. Large ones take their bytes from the budget, which must outlive them; for small
// ones the owner does. False: the budget is used up, and the value as it was.
class StoreValue {
 public:
  static constexpr std::size_t shared_bytes_min = 16u << 10;

  std::string_view view() const { return shared_ ? shared_->block.view() : small_; }
  std::size_t size() const { return view().size(); }
  std::size_t small_bytes() const { return small_.size(); }  // 0 for a large one.
  bool assign(std::string_view bytes, MemoryBudget& budget);
  bool assign(StoreBlock&& bytes, MemoryBudget& budget);  // Keeps the block when it is large.
  bool append(std::string_view bytes, MemoryBudget& budget);
  // Null for a small value.
  const std::shared_ptr<SharedBlock>& shared() const { return shared_; }

 private:
  bool take(std::size_t bytes, MemoryBudget& budget);
  void hold(StoreBlock&& bytes, MemoryBudget& budget);

  std::string small_;
  std::shared_ptr<SharedBlock> shared_;  // Never changed while somebody else holds it.
};

class ReplyBuffer {
 public:
  template <class Number>
  void put(Number number) {
    put_number(bytes_, number);
  }
  void put_bytes(std::string_view bytes) { put_string(bytes_, bytes); }
  void put_value(const StoreValue& value);  // As put_bytes(value.view()).

  std::size_t size() const { return bytes_.size() + shared_bytes_ - sent_; }  // Not yet sent.
  bool empty() const { return size() == 0; }
  // What it holds itself, without the values it shares with the store.
  std::size_t own_bytes() const { return bytes_.size() + shared_.size() * sizeof(Shared); }
  void clear();

  // The next bytes to send, at most `count` pieces; valid until the buffer changes.
  std::size_t pieces(iovec* out, std::size_t count) const;
  // `size` bytes of them have been sent. What is wholly sent is forgotten in time.
  void consume(std::size_t size);
  // Moves what is in `other` to the end. `other` may be partly sent only if this one is empty.
  void take(ReplyBuffer& other);
  // All of it as one string (for tests).
  std::string text() const;

 private:
  struct Shared {
    std::size_t at;  // Before this byte of bytes_.
    std::shared_ptr<const SharedBlock> value;
  };

  std::string bytes_;
  std::vector<Shared> shared_;
  std::size_t shared_bytes_ = 0;
  std::size_t sent_ = 0;  // Of bytes_ and shared_ together, in their order.
};

}  // namespace ddprun::rendezvous
