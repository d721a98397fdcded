// Ranks that meet through memory which they have in common: threads of one process, or processes
// forked after `create`. Tests and benchmarks need no store this way.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "worker/peers/exchange.h"

namespace ddprun::worker {

class MappedExchange : public AddressExchange {
 public:
  static constexpr std::size_t text_bytes_max = 4096;
  static constexpr int rounds_max = 4;

  // The common memory; released with the last MappedExchange of this process.
  struct Board {
    struct Slot {
      std::atomic<std::uint32_t> bytes;  // 0 until the text is there; 1 + its length then.
      char text[text_bytes_max];
    };

    int world_size = 0;
    std::size_t mapped_bytes = 0;
    Slot* slots = nullptr;  // rounds_max * world_size

    ~Board() {
      if (slots != nullptr) ::munmap(slots, mapped_bytes);
    }
    Slot& slot(int round, int rank) { return slots[round * world_size + rank]; }
  };

  static std::shared_ptr<Board> create(int world_size) {
    auto board = std::make_shared<Board>();
    board->world_size = world_size;
    board->mapped_bytes = sizeof(Board::Slot) * static_cast<std::size_t>(rounds_max * world_size);
    void* memory = ::mmap(nullptr, board->mapped_bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    board->slots = static_cast<Board::Slot*>(memory);  // Zero pages are empty slots.
    return board;
  }

  MappedExchange(std::shared_ptr<Board> board, int rank) : board_(std::move(board)), rank_(rank) {}

  std::vector<std::string> all_gather(const std::string& mine,
                                      std::chrono::steady_clock::time_point deadline) override {
    if (round_ >= rounds_max || mine.size() > text_bytes_max) {
      throw CommunicatorError("MappedExchange: too many rounds or too long a text");
    }
    Board::Slot& own = board_->slot(round_, rank_);
    std::memcpy(own.text, mine.data(), mine.size());
    own.bytes.store(static_cast<std::uint32_t>(mine.size()) + 1, std::memory_order_release);
    std::vector<std::string> texts;
    for (int rank = 0; rank < board_->world_size; ++rank) texts.push_back(take(rank, deadline));
    ++round_;
    return texts;
  }

  std::string local_address() const override { return "127.0.0.1"; }

 private:
  std::string take(int rank, std::chrono::steady_clock::time_point deadline) {
    Board::Slot& slot = board_->slot(round_, rank);
    while (slot.bytes.load(std::memory_order_acquire) == 0) {
      if (std::chrono::steady_clock::now() >= deadline) {
        throw CommunicatorError("rank " + std::to_string(rank) +
                                " did not give its address in time");
      }
      std::this_thread::sleep_for(std::chrono::microseconds{200});
    }
    return {slot.text, slot.bytes.load(std::memory_order_acquire) - 1};
  }

  std::shared_ptr<Board> board_;
  int rank_;
  int round_ = 0;
};

}  // namespace ddprun::worker
