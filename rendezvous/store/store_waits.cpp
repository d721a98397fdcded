// Parked waits, barriers and queues of the Store.
//
// Each parked wait has one node per missing key, linked into the list of that key's entry in order
// of arrival. A node leaves its list the moment its key is ready, and all of them when the client
// cancels, sends something else, or goes away: so an answer is never given to a wait that is over.
#include <algorithm>
#include <limits>

#include "rendezvous/store/store.h"
#include "rendezvous/store/store_number.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t idle_nodes = 16;  // Kept by a connection between two waits.
constexpr const char* out_of_memory = "memory_bytes_max is used up";
constexpr const char* too_many_waits = "wait_bytes_max is used up by parked waits";

}  // namespace

bool Store::waiting(ConnectionId connection) const {
  return connection < parked_.size() && parked_[connection].missing > 0;
}

void Store::disconnect(ConnectionId connection) {
  if (connection >= parked_.size()) return;
  unpark(connection);
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
  while (entry.waiters.first != nullptr && !satisfy(*entry.waiters.first, call.woken)) {
  }
  return {};
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
  Parked& parked = parked_[connection];
  if (parked.missing == 0) return;
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

}  // namespace ddprun::rendezvous
