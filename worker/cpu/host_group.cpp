// Counters, doorbells and allocations in shared memory.
#include "worker/cpu/host_group.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <exception>
#include <system_error>

namespace ddprun::worker {
namespace {

constexpr std::size_t page_bytes = 4096;

std::size_t round_up(std::size_t bytes) {
  return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

}  // namespace

std::size_t HostGroup::segment_bytes(std::size_t buffer_bytes) {
  return round_up(sizeof(Page)) + 4 * round_up(buffer_bytes);
}

HostGroup::HostGroup(int rank, std::vector<SharedSegment> segments, std::size_t buffer_bytes)
    : rank_(rank),
      segments_(std::move(segments)),
      buffer_bytes_(round_up(buffer_bytes)),
      allocations_(segments_.size()) {
  for (int peer = 0; peer < static_cast<int>(segments_.size()); ++peer) {
    if (peer != rank_ && contains(peer)) peers_.push_back(peer);
  }
  page(rank_).pid = ::getpid();
}

void HostGroup::announce(const Call& call, Place place) {
  // Two places: who announces call n + 2 has met every peer in n + 1, so none still reads n.
  page(rank_).announcements[call.sequence % 2] = {call, place};
}

Call HostGroup::announced(int peer, std::uint32_t sequence) const {
  return page(peer).announcements[sequence % 2].call;
}

HostGroup::Place HostGroup::place(int peer, std::uint32_t sequence) const {
  return page(peer).announcements[sequence % 2].place;
}

unsigned char* HostGroup::buffers(int rank, std::uint64_t step) const {
  auto* base = static_cast<unsigned char*>(segments_[index(rank)].data());
  return base + round_up(sizeof(Page)) + step % 2 * buffer_bytes_;
}

bool HostGroup::all_offered(std::uint64_t steps) const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [&](int peer) { return has_offered(peer, steps); });
}

bool HostGroup::all_combined(std::uint64_t steps) const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [&](int peer) { return has_combined(peer, steps); });
}

unsigned char* HostGroup::contribution(int rank, std::uint64_t step) const {
  // Enough in calls without results. In one with them a peer in place offers all steps at once, and
  // it is CpuAllReduce::stage() that knows.
  assert(rank != rank_ || all_offered(step));
  return buffers(rank, step);
}

unsigned char* HostGroup::result(int rank, std::uint64_t step) const {
  // A peer that has offered step k has copied this rank's result of step k - 2.
  assert(rank != rank_ || all_offered(step + 1));
  return buffers(rank, step) + 2 * buffer_bytes_;
}

// A peer that sets `waiting` and then reads the counter, and this rank that sets the counter and
// then reads `waiting`, cannot both miss each other: all four are sequentially consistent.
void HostGroup::advance(std::atomic<std::uint64_t>& counter, std::uint64_t to) {
  assert(counter.load(std::memory_order_relaxed) < to);  // Peers wait for "at least".
  page(rank_).processor.store(::sched_getcpu(), std::memory_order_relaxed);
  counter.store(to, std::memory_order_seq_cst);
  for (int peer : peers_) {
    if (page(peer).waiting.load(std::memory_order_seq_cst) != 0) ring(peer);
  }
}

void HostGroup::ring(int rank) noexcept {
  page(rank).doorbell.fetch_add(1, std::memory_order_seq_cst);
  wake_word(page(rank).doorbell);
}

bool HostGroup::is_on_this_processor(int peer) const {
  return page(peer).processor.load(std::memory_order_relaxed) == ::sched_getcpu();
}

std::uint32_t HostGroup::begin_allocation(std::size_t bytes, std::string& lack) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t number = next_allocation_++;
  Page& own = page(rank_);
  own.allocation.fd = -1;
  for (int peer : peers_) {
    std::erase_if(allocations_[index(peer)],
                  [&](const auto& entry) { return page(peer).released[entry.first].load() != 0; });
  }
  if (number >= allocations_max) return number;
  try {
    SharedSegment segment = SharedSegment::create(bytes);
    const SegmentAddress address = segment.address();
    own.allocation.fd = address.fd;
    own.allocation.bytes = address.bytes;
    std::memcpy(own.allocation.token, address.token.data(), sizeof(own.allocation.token));
    allocations_[index(rank_)].emplace(number, std::move(segment));
  } catch (const std::system_error& error) {
    if (error.code().value() == ENOMEM) lack = error.what();
  } catch (const std::exception&) {  // Ordinary memory serves as well, only slower.
  }
  return number;
}

bool HostGroup::map_allocation(int peer, std::uint32_t number) {
  const Page& theirs = page(peer);
  if (theirs.allocation.fd < 0) return false;
  SegmentAddress address{theirs.pid, theirs.allocation.fd, theirs.allocation.bytes,
                         std::string(theirs.allocation.token, sizeof(theirs.allocation.token))};
  try {
    SharedSegment segment = SharedSegment::open(address);
    const std::lock_guard lock(mutex_);
    allocations_[index(peer)].emplace(number, std::move(segment));
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void HostGroup::acknowledge(std::uint64_t ranks_mapped) { page(rank_).mapped.store(ranks_mapped); }

bool HostGroup::acknowledged_by(int peer) const {
  return (page(peer).mapped.load() >> rank_ & 1) != 0;
}

void HostGroup::finish_allocation(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  shared_.push_back(number);
}

void* HostGroup::allocation_data(int rank, std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  const auto& of_rank = allocations_[index(rank)];
  const auto found = of_rank.find(number);
  return found == of_rank.end() ? nullptr : found->second.data();
}

void HostGroup::release_allocation(std::uint32_t number) {
  if (!owner_.is_this()) return;
  const std::lock_guard lock(mutex_);
  std::erase(shared_, number);
  allocations_[index(rank_)].erase(number);
  if (number < allocations_max) page(rank_).released[number].store(1);
}

HostGroup::Place HostGroup::find(const void* data, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto* first = static_cast<const unsigned char*>(data);
  for (std::uint32_t number : shared_) {
    const SharedSegment& segment = allocations_[index(rank_)].at(number);
    const auto* base = static_cast<const unsigned char*>(segment.data());
    if (first >= base && first + bytes <= base + segment.size()) {
      return {number, static_cast<std::uint64_t>(first - base)};
    }
  }
  return {};
}

}  // namespace ddprun::worker
