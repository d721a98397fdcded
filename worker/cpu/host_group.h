// The ranks of one host, through shared memory: what each has to give, how far each has come, and
// sleeping until the others are as far.
//
// Work is counted in steps, the same on all ranks. For every step a rank says two things:
//
//   offered(step)   my contribution to it can be read, and I am done with the step before
//   combined(step)  my slice of the result can be read, and I have read all contributions
//
// A rank owns one segment: a page of counters, two buffers for its contributions and two for its
// slices of results; step k uses buffer k % 2. Why two are enough: before a rank writes its
// contribution to step k it has seen combined(k-2), or offered(k-1) of a call without results, of
// every peer; before it writes its result of step k it has seen offered(k), which a peer says after
// it copied the result of step k-2.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "worker/owning_process.h"
#include "worker/peers/frame.h"
#include "worker/peers/shared_memory.h"

namespace ddprun::worker {

class HostGroup {
 public:
  static constexpr std::size_t allocations_max = 4096;  // Later ones are not shared.
  static std::size_t segment_bytes(std::size_t buffer_bytes);

  // `segments[r]` is rank r's as mapped here; empty for ranks of other hosts. `buffer_bytes` is the
  // size of one buffer, equal on all ranks.
  HostGroup(int rank, std::vector<SharedSegment> segments, std::size_t buffer_bytes);

  bool contains(int rank) const { return static_cast<bool>(segments_[index(rank)]); }

  // Where a rank's contribution lies: in one of its allocations, or (0) in its buffers.
  struct Place {
    std::uint32_t allocation = 0;
    std::uint64_t offset = 0;
  };

  // Starts a call. Must precede offer() of its first step.
  void announce(const Call& call, Place place);
  Call announced(int peer, std::uint32_t sequence) const;
  Place place(int peer, std::uint32_t sequence) const;

  void offer(std::uint64_t steps) { advance(page(rank_).offered, steps); }  // Steps done so far.
  void combine(std::uint64_t steps) { advance(page(rank_).combined, steps); }
  bool has_offered(int peer, std::uint64_t steps) const {
    return page(peer).offered.load(std::memory_order_acquire) >= steps;
  }
  bool has_combined(int peer, std::uint64_t steps) const {
    return page(peer).combined.load(std::memory_order_acquire) >= steps;
  }
  bool all_offered(std::uint64_t steps) const;
  bool all_combined(std::uint64_t steps) const;

  // The peer seems to share this thread's processor: spinning would only keep it from running.
  bool is_on_this_processor(int peer) const;

  // Buffers of buffer_bytes. This rank asks for its own only in order to write; that it may do so
  // then, as the head of this file says, is asserted.
  unsigned char* contribution(int rank, std::uint64_t step) const;
  unsigned char* result(int rank, std::uint64_t step) const;

  // Sleeps until a peer advanced, ring() was called, or `deadline`; returns at once if `done()`.
  // May return early. `done` must read what it needs afresh.
  template <typename Done>
  void sleep_unless(Done done, std::chrono::steady_clock::time_point deadline) {
    Page& own = page(rank_);
    own.waiting.store(1, std::memory_order_seq_cst);
    const std::uint32_t seen = own.doorbell.load(std::memory_order_seq_cst);
    if (!done()) wait_on_word(own.doorbell, seen, deadline);
    own.waiting.store(0, std::memory_order_relaxed);
  }
  void ring() noexcept { ring(rank_); }  // Wakes this rank, from any of its threads.

  // Memory of this rank that peers map too. Allocations are numbered 1, 2, ... alike on all ranks.
  // Returns the number; nothing is shared (data is null) if the machine refused. `lack` becomes how
  // much memory is missing, where that is why.
  std::uint32_t begin_allocation(std::size_t bytes, std::string& lack);
  bool map_allocation(int peer, std::uint32_t number);  // The one that the peer began last.
  void acknowledge(std::uint64_t ranks_mapped);         // Bit r: map_allocation(r) succeeded.
  // Every peer mapped this rank's last allocation: from now on find() knows it.
  void finish_allocation(std::uint32_t number);
  bool acknowledged_by(int peer) const;
  void* allocation_data(int rank, std::uint32_t number) const;
  // Safe from any thread. Peers unmap it when they next allocate; not for a forked child.
  void release_allocation(std::uint32_t number);
  // The shared allocation of this rank that holds all of [data, data + bytes), if any.
  Place find(const void* data, std::size_t bytes) const;

 private:
  struct Announcement {
    Call call;
    Place place;
  };
  struct Page {
    alignas(64) std::atomic<std::uint32_t> doorbell;
    std::atomic<std::uint32_t> waiting;
    std::atomic<std::int32_t> processor;  // Where its owner ran when it last advanced.
    alignas(64) std::atomic<std::uint64_t> offered;
    alignas(64) std::atomic<std::uint64_t> combined;
    alignas(64) Announcement announcements[2];  // Call s uses s % 2.
    std::atomic<std::uint64_t> mapped;          // Bit r: rank r's last allocation is mapped here.
    struct {
      std::int32_t fd;
      std::uint64_t bytes;
      char token[32];
    } allocation;  // The last one begun; fd -1: none.
    std::int32_t pid;
    std::atomic<std::uint8_t> released[allocations_max];
  };
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  unsigned char* buffers(int rank, std::uint64_t step) const;
  Page& page(int rank) const { return *static_cast<Page*>(segments_[index(rank)].data()); }
  void ring(int rank) noexcept;
  void advance(std::atomic<std::uint64_t>& counter, std::uint64_t to);

  const OwningProcess owner_;
  int rank_;
  std::vector<SharedSegment> segments_;
  std::vector<int> peers_;  // Without this rank.
  std::size_t buffer_bytes_;
  mutable std::mutex mutex_;  // Guards what follows: memory is released from any thread.
  std::vector<std::map<std::uint32_t, SharedSegment>> allocations_;  // By rank, by number.
  std::vector<std::uint32_t> shared_;  // Own ones that every peer of this host has mapped.
  std::uint32_t next_allocation_ = 1;
};

}  // namespace ddprun::worker
