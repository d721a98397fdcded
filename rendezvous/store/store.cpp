// What c10d's TCPStore does with a key, as a function of what was asked before: no socket is here.
//
// Each parked wait has one node per missing key, linked into the list of that key's entry in order
// of arrival. A node leaves its list the moment its key is ready, and all of them when the client
// cancels, sends something else, or goes away: so an answer is never given to a wait that is over.
#include "rendezvous/store/store.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "rendezvous/store/store_number.h"

namespace ddprun::rendezvous {
namespace {

// A map node, its links, its cached hash and the allocator's share.
constexpr std::size_t entry_overhead_bytes = 192;

// The map and the first chunk of a std::deque.
constexpr std::size_t queue_overhead_bytes = 600;

constexpr std::size_t idle_nodes = 16;  // Kept by a connection between two waits.
constexpr const char* too_many_waits = "wait_bytes_max is used up by parked waits";
constexpr const char* out_of_memory = "memory_bytes_max is used up";

std::string in_quotes(std::string_view key) {
  std::string text = "'";
  for (const char c : key.substr(0, 64)) text += c >= ' ' && c <= '~' ? c : '?';
  return text + (key.size() > 64 ? "...'" : "'");
}

std::string not_a_number(std::string_view op, std::string_view key, std::string_view value) {
  return std::string(op) + ": the value of " + in_quotes(key) + " is " + in_quotes(value) +
         ", not a number";
}

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

// ---- operations on keys ----

std::string Store::handle(ConnectionId caller, const StoreRequest& request, ReplyBuffer& reply,
                          std::vector<ConnectionId>& woken) {
  // A client that sends something new no longer waits: those of torch 1.13 have no CANCEL_WAIT,
  // and would take a late answer for that of another request.
  unpark(caller);
  answer_call(caller, &request, woken);
  const Call call{caller, request, reply, woken};
  switch (request.op) {
    case StoreOp::Set:
      return set(call);
    case StoreOp::CompareSet:
      return compare_set(call);
    case StoreOp::Get:
      return get(call);
    case StoreOp::Add:
      return add(call);
    case StoreOp::Check:
      return check(call);
    case StoreOp::Wait:
      return wait(call);
    case StoreOp::NumKeys:
      reply.put<std::int64_t>(static_cast<std::int64_t>(num_keys_));
      return {};
    case StoreOp::DeleteKey:
      return delete_key(call);
    case StoreOp::Append:
      return append(call);
    case StoreOp::MultiGet:
      return multi_get(call);
    case StoreOp::MultiSet:
      return multi_set(call);
    case StoreOp::CancelWait:
      reply.put(wait_canceled);
      return {};  // Also when nothing waited.
    case StoreOp::Ping:
      reply.put(static_cast<std::uint32_t>(request.number));
      return {};
    case StoreOp::QueuePush:
      return queue_push(call);
    case StoreOp::QueuePop:
      return queue_pop(call);
    case StoreOp::QueueLen:
      return queue_len(call);
    case StoreOp::ListKeys:
      return list_keys(call);
    case StoreOp::Barrier:
      return barrier(call);
    case StoreOp::Validate:
      return {};
  }
  return "unknown operation";
}

std::string Store::set(const Call& call) {
  const StoreRequest& request = call.request;
  StoreBlock* owned = request.large.empty() ? nullptr : &request.large.front().block;
  return set_value(request.key, request.value, owned, call.woken) ? "" : out_of_memory;
}

// On a missing key an empty `expected` creates it; any other is answered with itself.
std::string Store::compare_set(const Call& call) {
  const auto& [op, key, expected, desired, number, items, large] = call.request;
  if (key.starts_with(attempt_key_prefix)) return tell_attempt(call);
  const Keyed* keyed = find(key);
  const bool present = keyed != nullptr && keyed->second.present;
  if (present && keyed->second.value.view() != expected) {
    call.reply.put_value(keyed->second.value);
    return {};
  }
  if (!present && !expected.empty()) {
    call.reply.put_bytes(expected);
    return {};
  }
  const bool own = !large.empty() && large.back().field == 2;
  if (!set_value(key, desired, own ? &large.back().block : nullptr, call.woken)) {
    return out_of_memory;
  }
  call.reply.put_value(find(key)->second.value);
  return {};
}

// Nothing is compared, set or kept.
std::string Store::tell_attempt(const Call& call) {
  const std::string_view attempt = call.request.key.substr(attempt_key_prefix.size());
  call.reply.put_bytes(attempt_.text(attempt));
  if (attempt_.fits(attempt)) return {};
  return "it is of attempt " + in_quotes(attempt) + ", and this is attempt " +
         in_quotes(attempt_.name);
}

std::string Store::get(const Call& call) {
  const Keyed* keyed = find(call.request.key);
  if (keyed != nullptr) {
    call.reply.put_value(keyed->second.value);
  } else {
    call.reply.put_bytes({});
  }
  return {};
}

std::string Store::add(const Call& call) {
  const std::string_view key = call.request.key;
  std::int64_t before = 0;
  if (const Keyed* keyed = find(key); keyed != nullptr && keyed->second.present) {
    const auto number = parse_counter(keyed->second.value.view());
    if (!number) return not_a_number("ADD", key, keyed->second.value.view());
    before = *number;
  }
  const std::int64_t after = wrapping_add(before, call.request.number);
  if (!set_number(key, after, call.woken)) return out_of_memory;
  call.reply.put(after);
  return {};
}

std::optional<std::int64_t> Store::number(std::string_view key) const {
  const auto found = entries_.find(key);
  if (found == entries_.end() || !found->second.present) return std::nullopt;
  return parse_counter(found->second.value.view());
}

std::string Store::append(const Call& call) {
  Keyed* keyed = find(call.request.key);
  if (keyed == nullptr || !keyed->second.present) return set(call);
  StoreValue& value = keyed->second.value;
  const std::size_t size = value.size() + call.request.value.size();
  if (size > limits_.value_bytes_max) {
    return "APPEND: the value of " + in_quotes(call.request.key) + " would have " +
           std::to_string(size) +
           " bytes, over value_bytes_max = " + std::to_string(limits_.value_bytes_max);
  }
  const std::size_t before = value.small_bytes();
  const std::size_t after = size < StoreValue::shared_bytes_min ? size : 0;
  if (after > before && !charge(before, after)) return out_of_memory;
  if (!value.append(call.request.value, budget_)) return out_of_memory;
  if (after < before) charge(before, after);
  value_changed(*keyed, call.woken);
  return {};
}

// A missing key has an empty value here too: it may have been deleted since the client's WAIT.
std::string Store::multi_get(const Call& call) {
  found_.clear();
  std::size_t bytes = 0;
  for (const std::string_view key : call.request.items) {
    found_.push_back(find(key));
    bytes += sizeof(std::uint64_t) + (found_.back() ? found_.back()->second.value.size() : 0);
  }
  if (bytes > limits_.reply_bytes_max) {
    return "MULTI_GET: a reply of " + std::to_string(bytes) + " bytes, over " +
           std::to_string(limits_.reply_bytes_max);
  }
  for (const Keyed* keyed : found_) {
    if (keyed != nullptr) {
      call.reply.put_value(keyed->second.value);
    } else {
      call.reply.put_bytes({});
    }
  }
  return {};
}

std::string Store::multi_set(const Call& call) {
  const auto items = call.request.items;
  auto large = call.request.large.begin();
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const bool own = large != call.request.large.end() && large->field == i + 1;
    StoreBlock* owned = own ? &(large++)->block : nullptr;
    if (!set_value(items[i], items[i + 1], owned, call.woken)) return out_of_memory;
  }
  return {};
}

// The key alone: a queue of that name stays, and nobody is woken.
std::string Store::delete_key(const Call& call) {
  Keyed* keyed = find(call.request.key);
  const bool present = keyed != nullptr && keyed->second.present;
  call.reply.put<std::int64_t>(present ? 1 : 0);
  if (!present) return {};
  Entry& entry = keyed->second;
  charge(entry.value.small_bytes(), 0);
  entry.value = StoreValue();
  entry.present = false;
  --num_keys_;
  count_placeholder(*keyed);
  erase_if_unused(keyed);
  return {};
}

std::string Store::list_keys(const Call& call) {
  std::size_t bytes = sizeof(std::int64_t);
  for (const auto& [key, entry] : entries_) bytes += sizeof(std::uint64_t) + key.size();
  if (bytes > limits_.reply_bytes_max) {
    return "LIST_KEYS: a reply of " + std::to_string(bytes) + " bytes, over " +
           std::to_string(limits_.reply_bytes_max);
  }
  call.reply.put<std::int64_t>(static_cast<std::int64_t>(num_keys_));
  for (const auto& [key, entry] : entries_) {
    if (entry.present) call.reply.put_bytes(key);
  }
  return {};
}

// ---- what waits, or is waited for in order ----

bool Store::waiting(ConnectionId connection) const {
  return connection < parked_.size() && parked_[connection].missing > 0;
}

void Store::disconnect(ConnectionId connection, std::vector<ConnectionId>& woken) {
  if (connection >= parked_.size()) return;
  unpark(connection);
  answer_call(connection, nullptr, woken);
  parked_[connection] = Parked();
}

std::string Store::check(const Call& call) {
  const auto ready = [this](std::string_view key) {
    const Keyed* keyed = find(key);
    return keyed != nullptr && keyed->second.ready();
  };
  const auto& keys = call.request.items;
  call.reply.put(std::all_of(keys.begin(), keys.end(), ready) ? check_ready : check_not_ready);
  return {};
}

// A key counts as there if it exists now, or comes to exist at any later moment, even if it is
// deleted before the others come.
std::string Store::wait(const Call& call) {
  missing_.clear();
  for (const std::string_view key : call.request.items) {
    const Keyed* keyed = find(key);
    if (keyed == nullptr || !keyed->second.ready()) missing_.push_back(key);
  }
  if (missing_.empty()) {
    call.reply.put(wait_stopped);
    return {};
  }
  if (std::string refused = park(call.caller, missing_.size()); !refused.empty()) return refused;
  Parked& parked = parked_[call.caller];
  parked.barrier = false;
  for (std::size_t i = 0; i < missing_.size(); ++i) {
    Keyed* keyed = find_or_create(missing_[i]);
    if (keyed == nullptr) {
      unpark(call.caller);
      return out_of_memory;
    }
    link(parked.nodes[i], *keyed, keyed->second.waiters);
    count_placeholder(*keyed);
    if (wait_bytes_ > limits_.wait_bytes_max) {
      unpark(call.caller);
      return too_many_waits;
    }
  }
  return {};
}

// Counts the arrivals in the key itself, and never down again: those who come after the release
// pass at once.
std::string Store::barrier(const Call& call) {
  const std::string_view key = call.request.key;
  const std::int64_t target = call.request.number;
  std::int64_t before = 0;
  if (const Keyed* keyed = find(key); keyed != nullptr && keyed->second.present) {
    const auto number = parse_counter(keyed->second.value.view());
    if (!number) return "BARRIER: the value of its key is not a number";
    before = *number;
  }
  const std::int64_t count = wrapping_add(before, 1);
  if (!set_number(key, count, call.woken)) return out_of_memory;
  if (count >= target) {
    call.reply.put(wait_stopped);
    return {};
  }
  if (std::string refused = park(call.caller, 1); !refused.empty()) return refused;
  Parked& parked = parked_[call.caller];
  parked.barrier = true;
  parked.barrier_target = target;
  Keyed* keyed = find(key);
  if (extra_of(keyed->second) == nullptr) {
    unpark(call.caller);
    return out_of_memory;
  }
  Extra& extra = *keyed->second.extra;
  const bool first = extra.barriers.first == nullptr;
  extra.barrier_target_min = first ? target : std::min(extra.barrier_target_min, target);
  link(parked.nodes[0], *keyed, extra.barriers);
  return {};
}

// Releases the parked barriers whose count is reached, also if SET or ADD brought it there.
void Store::release_barriers(Keyed& keyed, std::vector<ConnectionId>& woken) {
  Extra& extra = *keyed.second.extra;
  if (extra.barriers.first == nullptr) return;
  const auto count = parse_counter(keyed.second.value.view());
  if (!count || *count < extra.barrier_target_min) return;
  std::int64_t lowest = std::numeric_limits<std::int64_t>::max();
  for (Node* node = extra.barriers.first; node != nullptr;) {
    Node* next = node->next;
    const std::int64_t target = parked_[node->connection].barrier_target;
    if (target <= *count) {
      satisfy(*node, woken);
    } else {
      lowest = std::min(lowest, target);
    }
    node = next;
  }
  extra.barrier_target_min = lowest;
}

// Wakes one waiter, the oldest that waits for nothing else any more.
std::string Store::queue_push(const Call& call) {
  const StoreRequest& request = call.request;
  Keyed* keyed = find_or_create(request.key);
  if (keyed == nullptr) return out_of_memory;
  Entry& entry = keyed->second;
  if (extra_of(entry) == nullptr || !charge(0, sizeof(StoreValue))) {
    erase_if_unused(keyed);
    return out_of_memory;
  }
  auto& queue = entry.extra->queue;
  StoreBlock* owned = request.large.empty() ? nullptr : &request.large.front().block;
  if (!assign(queue.emplace_back(), request.value, owned)) {
    queue.pop_back();
    charge(sizeof(StoreValue), 0);
    erase_if_unused(keyed);
    return out_of_memory;
  }
  count_placeholder(*keyed);
  wake_one(*keyed, call.woken);
  return {};
}

void Store::wake_one(Keyed& keyed, std::vector<ConnectionId>& woken) {
  const NodeList& waiters = keyed.second.waiters;
  while (waiters.first != nullptr) {
    if (!satisfy(*waiters.first, woken)) continue;
    parked_[woken.back()].called_to = &keyed;
    ++keyed.second.extra->called;
    return;
  }
}

// The connection asks for something, or is gone (null). Unless it pops from the queue that it was
// called to, the next waiter is called in its place: nobody else would be told of that item.
void Store::answer_call(ConnectionId connection, const StoreRequest* request,
                        std::vector<ConnectionId>& woken) {
  if (connection >= parked_.size()) return;
  Keyed* keyed = std::exchange(parked_[connection].called_to, nullptr);
  if (keyed == nullptr) return;
  Extra& extra = *keyed->second.extra;
  --extra.called;
  const bool pops =
      request != nullptr && request->op == StoreOp::QueuePop && request->key == keyed->first;
  if (!pops && extra.queue.size() > extra.called) wake_one(*keyed, woken);
  erase_if_unused(keyed);
}

// The length before, and if that is not 0 the oldest item.
std::string Store::queue_pop(const Call& call) {
  Keyed* keyed = find(call.request.key);
  if (keyed == nullptr || !keyed->second.extra || keyed->second.extra->queue.empty()) {
    call.reply.put<std::int64_t>(0);
    return {};
  }
  auto& queue = keyed->second.extra->queue;
  call.reply.put<std::int64_t>(static_cast<std::int64_t>(queue.size()));
  call.reply.put_value(queue.front());
  charge(sizeof(StoreValue) + queue.front().small_bytes(), 0);
  queue.pop_front();
  count_placeholder(*keyed);
  erase_if_unused(keyed);
  return {};
}

std::string Store::queue_len(const Call& call) {
  const Keyed* keyed = find(call.request.key);
  const bool some = keyed != nullptr && keyed->second.extra;
  const std::size_t length = some ? keyed->second.extra->queue.size() : 0;
  call.reply.put<std::int64_t>(static_cast<std::int64_t>(length));
  return {};
}

// Makes `nodes` unlinked nodes for the connection. Not empty: why it cannot wait.
std::string Store::park(ConnectionId connection, std::size_t nodes) {
  if (nodes * sizeof(Node) >
      limits_.wait_bytes_max - std::min(wait_bytes_, limits_.wait_bytes_max)) {
    return too_many_waits;
  }
  if (!charge(0, nodes * sizeof(Node))) return out_of_memory;
  wait_bytes_ += nodes * sizeof(Node);
  if (connection >= parked_.size()) parked_.resize(connection + 1);
  Parked& parked = parked_[connection];
  parked.nodes.assign(nodes, Node{.connection = connection});
  parked.missing = nodes;
  return {};
}

void Store::unpark(ConnectionId connection) {
  if (!waiting(connection)) return;
  Parked& parked = parked_[connection];
  for (Node& node : parked.nodes) {
    if (node.keyed == nullptr) continue;
    Keyed* keyed = node.keyed;
    unlink(node);
    erase_if_unused(keyed);
  }
  release_nodes(parked);
}

void Store::link(Node& node, Keyed& keyed, NodeList& list) {
  node.keyed = &keyed;
  node.previous = list.last;
  node.next = nullptr;
  (list.last != nullptr ? list.last->next : list.first) = &node;
  list.last = &node;
}

void Store::unlink(Node& node) {
  Entry& entry = node.keyed->second;
  NodeList& list = parked_[node.connection].barrier ? entry.extra->barriers : entry.waiters;
  (node.previous != nullptr ? node.previous->next : list.first) = node.next;
  (node.next != nullptr ? node.next->previous : list.last) = node.previous;
  node.keyed = nullptr;
}

// The key of this node is ready. True if that ended the wait.
bool Store::satisfy(Node& node, std::vector<ConnectionId>& woken) {
  const ConnectionId connection = node.connection;
  Parked& parked = parked_[connection];
  unlink(node);
  if (--parked.missing > 0) return false;
  woken.push_back(connection);
  release_nodes(parked);
  return true;
}

void Store::release_nodes(Parked& parked) {
  charge(parked.nodes.size() * sizeof(Node), 0);
  wait_bytes_ -= parked.nodes.size() * sizeof(Node);
  parked.missing = 0;
  parked.nodes.clear();
  if (parked.nodes.capacity() > idle_nodes) parked.nodes = {};
}

// ---- the entries, and what they take of the budget ----

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
  if (entry.extra && (entry.extra->barriers.first != nullptr || entry.extra->called > 0)) return;
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
