// The operations on keys; waits, barriers and queues are in store_waits.cpp.
#include "rendezvous/store/store.h"

#include "rendezvous/store/store_number.h"

namespace ddprun::rendezvous {
namespace {

constexpr const char* out_of_memory = "memory_bytes_max is used up";

std::string quoted(std::string_view key) {
  std::string text = "'";
  for (const char c : key.substr(0, 64)) text += c >= ' ' && c <= '~' ? c : '?';
  return text + (key.size() > 64 ? "...'" : "'");
}

std::string not_a_number(std::string_view op, std::string_view key, std::string_view value) {
  return std::string(op) + ": the value of " + quoted(key) + " is " + quoted(value) +
         ", not a number";
}

}  // namespace

std::string Store::handle(ConnectionId caller, const StoreRequest& request, ReplyBuffer& reply,
                          std::vector<ConnectionId>& woken) {
  // A client that sends something new no longer waits: those of torch 1.13 have no CANCEL_WAIT,
  // and would take a late answer for that of another request.
  if (waiting(caller)) unpark(caller);
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
  call.reply.put_bytes(attempt_.text());
  if (attempt_.fits(attempt)) return {};
  return "it is of attempt " + quoted(attempt) + ", and this is attempt " + quoted(attempt_.name);
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

std::string Store::append(const Call& call) {
  Keyed* keyed = find(call.request.key);
  if (keyed == nullptr || !keyed->second.present) return set(call);
  StoreValue& value = keyed->second.value;
  const std::size_t size = value.size() + call.request.value.size();
  if (size > limits_.value_bytes_max) {
    return "APPEND: the value of " + quoted(call.request.key) + " would have " +
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

}  // namespace ddprun::rendezvous
