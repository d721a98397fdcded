// The entries of the Store: finding, making and changing them, and what they take of the memory
// budget. The operations on them are in store.cpp and store_waits.cpp.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <charconv>
#include <utility>

#include "rendezvous/store/store.h"

namespace ddprun::rendezvous {
namespace {

// A map node, its links, its cached hash and the allocator's share.
constexpr std::size_t entry_overhead_bytes = 192;

// The map and the first chunk of a std::deque.
constexpr std::size_t queue_overhead_bytes = 600;

}  // namespace

std::size_t Store::Hash::operator()(std::string_view key) const {
  return XXH3_64bits_withSeed(key.data(), key.size(), seed);
}

Store::Store(StoreLimits limits, MemoryBudget& budget, std::uint64_t seed)
    : limits_(limits), budget_(budget), entries_(64, Hash{seed}) {}

Store::~Store() { clear(); }

void Store::clear() {
  entries_.clear();
  parked_.clear();
  num_keys_ = 0;
  wait_bytes_ = 0;
  budget_.give(charged_);
  charged_ = 0;
}

Store::Keyed* Store::find(std::string_view key) {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &*found;
}

Store::Keyed* Store::find_or_create(std::string_view key) {
  const auto found = entries_.find(key);
  if (found != entries_.end()) return &*found;
  if (!charge(0, entry_overhead_bytes + key.size())) return nullptr;
  return &*entries_.try_emplace(std::string(key)).first;
}

// `owned` may be null; otherwise it holds `value`, and a large one is kept as it is.
bool Store::set_value(std::string_view key, std::string_view value, StoreBlock* owned,
                      std::vector<ConnectionId>& woken) {
  Keyed* keyed = find_or_create(key);
  if (keyed == nullptr) return false;
  if (!assign(keyed->second.value, value, owned)) {
    erase_if_unused(keyed);
    return false;
  }
  value_changed(*keyed, woken);
  return true;
}

bool Store::assign(StoreValue& stored, std::string_view value, StoreBlock* owned) {
  const std::size_t before = stored.small_bytes();
  const std::size_t after = value.size() < StoreValue::shared_bytes_min ? value.size() : 0;
  if (after > before && !charge(before, after)) return false;
  const bool done =
      owned != nullptr ? stored.assign(std::move(*owned), budget_) : stored.assign(value, budget_);
  if (done && after < before) charge(before, after);
  return done;
}

bool Store::set_number(std::string_view key, std::int64_t number,
                       std::vector<ConnectionId>& woken) {
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, number).ptr;
  return set_value(key, {text, static_cast<std::size_t>(end - text)}, nullptr, woken);
}

// The key exists from here on, with a new value: releases those who waited for that.
void Store::value_changed(Keyed& keyed, std::vector<ConnectionId>& woken) {
  Entry& entry = keyed.second;
  num_keys_ += entry.present ? 0 : 1;
  entry.present = true;
  count_placeholder(keyed);
  while (entry.waiters.first != nullptr) satisfy(*entry.waiters.first, woken);
  if (entry.extra) release_barriers(keyed, woken);
}

void Store::erase_if_unused(Keyed* keyed) {
  const Entry& entry = keyed->second;
  if (entry.ready() || entry.waiters.first != nullptr) return;
  if (entry.extra && entry.extra->barriers.first != nullptr) return;
  const std::size_t bytes = entry_overhead_bytes + keyed->first.size();
  if (entry.placeholder) wait_bytes_ -= bytes;
  charge(bytes + (entry.extra ? sizeof(Extra) + queue_overhead_bytes : 0), 0);
  entries_.erase(entries_.find(keyed->first));
}

Store::Extra* Store::extra_of(Entry& entry) {
  if (!entry.extra && charge(0, sizeof(Extra) + queue_overhead_bytes)) {
    entry.extra = std::make_unique<Extra>();
  }
  return entry.extra.get();
}

// A key that is not there, and only waited for, belongs to those who wait.
void Store::count_placeholder(Keyed& keyed) {
  Entry& entry = keyed.second;
  if (entry.placeholder == !entry.ready()) return;
  entry.placeholder = !entry.placeholder;
  const std::size_t bytes = entry_overhead_bytes + keyed.first.size();
  wait_bytes_ += entry.placeholder ? bytes : -bytes;
}

bool Store::charge(std::size_t before, std::size_t after) {
  if (!budget_.change(before, after)) return false;
  charged_ += after - before;
  return true;
}

}  // namespace ddprun::rendezvous
