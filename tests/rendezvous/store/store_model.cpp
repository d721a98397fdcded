// Operation by operation what docs/store_protocol.md says, and nothing for speed: simple enough to
// be compared with the document by eye.
#include "tests/rendezvous/store/store_model.h"

#include <algorithm>
#include <stdexcept>

namespace ddprun::rendezvous::testing {
namespace {

const std::string zero(1, '\0'), one(1, '\1');

// As c10d reads a counter. False: not a number.
bool read_counter(const std::string& text, std::int64_t& number) {
  try {
    number = std::stoll(text);
    return true;
  } catch (const std::logic_error&) {
    return false;
  }
}

}  // namespace

StoreModel::Outcome StoreModel::apply(int client, const Operation& operation) {
  end_wait(client);  // Whatever it sends, it does not wait any more.
  outcome_ = {};
  answer_call(client, &operation);
  caller_ = client;
  const std::string& key = operation.key;
  switch (operation.op) {
    case StoreOp::Set:
      put(key, operation.value);
      break;
    case StoreOp::CompareSet:
      compare_set(operation);
      break;
    case StoreOp::Get:
      outcome_.reply = string_bytes(keys_.count(key) != 0 ? keys_[key] : "");
      break;
    case StoreOp::Add:
      add(operation);
      break;
    case StoreOp::Check: {
      const auto& items = operation.items;
      const bool all = std::all_of(items.begin(), items.end(), [&](auto& k) { return ready(k); });
      outcome_.reply = all ? zero : one;
      break;
    }
    case StoreOp::Wait:
      wait(operation);
      break;
    case StoreOp::NumKeys:
      outcome_.reply = number_bytes<std::int64_t>(static_cast<std::int64_t>(keys_.size()));
      break;
    case StoreOp::DeleteKey:
      outcome_.reply = number_bytes<std::int64_t>(static_cast<std::int64_t>(keys_.erase(key)));
      break;
    case StoreOp::Append:
      put(key, (keys_.count(key) != 0 ? keys_[key] : "") + operation.value);
      break;
    case StoreOp::MultiGet:
      for (const auto& k : operation.items) {
        outcome_.reply += string_bytes(keys_.count(k) != 0 ? keys_[k] : "");
      }
      break;
    case StoreOp::MultiSet:
      for (std::size_t i = 0; i < operation.items.size(); i += 2) {
        put(operation.items[i], operation.items[i + 1]);
      }
      break;
    case StoreOp::CancelWait:
      outcome_.reply = one;
      break;
    case StoreOp::Ping:
      outcome_.reply = number_bytes(static_cast<std::uint32_t>(operation.number));
      break;
    case StoreOp::QueuePush:
      queues_[key].push_back(operation.value);
      release(key, /*only_one=*/true);
      break;
    case StoreOp::QueuePop:
      pop(operation);
      break;
    case StoreOp::QueueLen:
      outcome_.reply = number_bytes<std::int64_t>(static_cast<std::int64_t>(queues_[key].size()));
      break;
    case StoreOp::ListKeys:
      list_keys();
      break;
    case StoreOp::Barrier:
      barrier(operation);
      break;
    case StoreOp::Validate:
      outcome_.closed = true;  // A second one.
      break;
  }
  return outcome_;
}

StoreModel::Outcome StoreModel::disconnect(int client) {
  end_wait(client);
  outcome_ = {};
  answer_call(client, nullptr);
  return outcome_;
}

// Who was woken for an item and does not ask for it leaves it to another, unless those who were
// woken as well are enough for all that is there.
void StoreModel::answer_call(int client, const Operation* operation) {
  const auto call = called_.extract(client);
  if (call.empty()) return;
  const std::string& key = call.mapped();
  if (operation != nullptr && operation->op == StoreOp::QueuePop && operation->key == key) return;
  const auto others = std::count_if(called_.begin(), called_.end(),
                                    [&](const auto& other) { return other.second == key; });
  if (queues_[key].size() > static_cast<std::size_t>(others)) release(key, /*only_one=*/true);
}

void StoreModel::end_wait(int client) {
  const auto theirs = [client](const Wait& wait) { return wait.client == client; };
  waits_.erase(std::remove_if(waits_.begin(), waits_.end(), theirs), waits_.end());
}

bool StoreModel::waiting(int client) const {
  return std::any_of(waits_.begin(), waits_.end(),
                     [client](const Wait& wait) { return wait.client == client; });
}

bool StoreModel::waited_for(std::string_view key) const {
  return std::any_of(waits_.begin(), waits_.end(), [key](const Wait& wait) {
    return std::count(wait.missing.begin(), wait.missing.end(), key) > 0;
  });
}

bool StoreModel::ready(const std::string& key) const {
  const auto queue = queues_.find(key);
  return keys_.count(key) != 0 || (queue != queues_.end() && !queue->second.empty());
}

void StoreModel::put(const std::string& key, const std::string& value) {
  keys_[key] = value;
  release(key, /*only_one=*/false);
  release_barriers(key);
}

// Those who wait for the key wait for it no more; who waits for nothing else is woken.
void StoreModel::release(const std::string& key, bool only_one) {
  for (std::size_t i = 0; i < waits_.size();) {
    auto& missing = waits_[i].missing;
    const auto end = std::remove(missing.begin(), missing.end(), key);
    const bool waited = end != missing.end() && !waits_[i].barrier;
    if (!waits_[i].barrier) missing.erase(end, missing.end());
    if (!waited || !missing.empty()) {
      ++i;
      continue;
    }
    outcome_.woken.push_back(waits_[i].client);
    waits_.erase(waits_.begin() + static_cast<std::ptrdiff_t>(i));
    if (only_one) {
      called_[outcome_.woken.back()] = key;
      return;
    }
  }
}

void StoreModel::release_barriers(const std::string& key) {
  std::int64_t count = 0;
  if (!read_counter(keys_[key], count)) return;
  for (std::size_t i = 0; i < waits_.size();) {
    const Wait& wait = waits_[i];
    if (!wait.barrier || wait.missing.front() != key || wait.target > count) {
      ++i;
      continue;
    }
    outcome_.woken.push_back(wait.client);
    waits_.erase(waits_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void StoreModel::add(const Operation& operation) {
  std::int64_t before = 0;
  if (keys_.count(operation.key) != 0 && !read_counter(keys_[operation.key], before)) {
    outcome_.closed = true;
    return;
  }
  const auto sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(before) +
                                             static_cast<std::uint64_t>(operation.number));
  put(operation.key, std::to_string(sum));
  outcome_.reply = number_bytes(sum);
}

void StoreModel::compare_set(const Operation& operation) {
  const auto found = keys_.find(operation.key);
  const bool there = found != keys_.end();
  if (there ? found->second == operation.value : operation.value.empty()) {
    put(operation.key, operation.desired);
    outcome_.reply = string_bytes(operation.desired);
  } else {
    outcome_.reply = string_bytes(there ? found->second : operation.value);
  }
}

void StoreModel::wait(const Operation& operation) {
  Wait wait{.client = caller_, .missing = {}};
  for (const std::string& key : operation.items) {
    if (!ready(key)) wait.missing.push_back(key);
  }
  if (wait.missing.empty()) {
    outcome_.reply = zero;
  } else {
    waits_.push_back(wait);
  }
}

void StoreModel::barrier(const Operation& operation) {
  std::int64_t before = 0;
  if (keys_.count(operation.key) != 0 && !read_counter(keys_[operation.key], before)) {
    outcome_.closed = true;
    return;
  }
  const auto count = static_cast<std::int64_t>(static_cast<std::uint64_t>(before) + 1);
  put(operation.key, std::to_string(count));
  if (count >= operation.number) {
    outcome_.reply = zero;
  } else {
    waits_.push_back({caller_, {operation.key}, true, operation.number});
  }
}

void StoreModel::pop(const Operation& operation) {
  auto& queue = queues_[operation.key];
  outcome_.reply = number_bytes<std::int64_t>(static_cast<std::int64_t>(queue.size()));
  if (queue.empty()) return;
  outcome_.reply += string_bytes(queue.front());
  queue.pop_front();
}

void StoreModel::list_keys() {
  outcome_.reply = number_bytes<std::int64_t>(static_cast<std::int64_t>(keys_.size()));
  for (const auto& [key, value] : keys_) outcome_.reply += string_bytes(key);
}

}  // namespace ddprun::rendezvous::testing
