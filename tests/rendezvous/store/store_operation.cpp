// Operations as the bytes of a request, and at random: of few keys and of values that servers treat
// differently, such as large ones, numbers and what only begins like one.
#include "tests/rendezvous/store/store_operation.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace ddprun::rendezvous::testing {

std::string encode(const Operation& operation) {
  std::string out(1, static_cast<char>(operation.op));
  switch (operation.op) {
    case StoreOp::Set:
    case StoreOp::Append:
    case StoreOp::QueuePush:
      return out + string_bytes(operation.key) + string_bytes(operation.value);
    case StoreOp::CompareSet:
      return out + string_bytes(operation.key) + string_bytes(operation.value) +
             string_bytes(operation.desired);
    case StoreOp::Add:
    case StoreOp::Barrier:
      return out + string_bytes(operation.key) + number_bytes(operation.number);
    case StoreOp::Get:
    case StoreOp::DeleteKey:
    case StoreOp::QueuePop:
    case StoreOp::QueueLen:
      return out + string_bytes(operation.key);
    case StoreOp::Ping:
      return out + number_bytes(static_cast<std::uint32_t>(operation.number));
    case StoreOp::Check:
    case StoreOp::Wait:
    case StoreOp::MultiGet:
    case StoreOp::MultiSet: {
      const std::size_t each = operation.op == StoreOp::MultiSet ? 2 : 1;
      out += number_bytes<std::uint64_t>(operation.items.size() / each);
      for (const std::string& item : operation.items) out += string_bytes(item);
      return out;
    }
    default:
      return out;
  }
}

Operation random_operation(std::minstd_rand& random, OperationMix mix) {
  constexpr std::array<StoreOp, 24> often{
      StoreOp::Set,       StoreOp::Set,      StoreOp::CompareSet, StoreOp::CompareSet,
      StoreOp::Get,       StoreOp::Add,      StoreOp::Add,        StoreOp::Check,
      StoreOp::Wait,      StoreOp::Wait,     StoreOp::Wait,       StoreOp::Wait,
      StoreOp::NumKeys,   StoreOp::ListKeys, StoreOp::DeleteKey,  StoreOp::DeleteKey,
      StoreOp::Append,    StoreOp::MultiGet, StoreOp::MultiSet,   StoreOp::CancelWait,
      StoreOp::QueuePush, StoreOp::QueuePop, StoreOp::QueueLen,   StoreOp::Barrier};
  const auto below = [&random](std::size_t limit) { return random() % limit; };
  const auto key = [&]() -> std::string {
    return std::array{"/a", "/b", "/c", "/d", "/key", "/longer/key"}[below(6)];
  };
  const auto queue = [&]() -> std::string {
    return mix.stock ? std::array{"/q", "/r", "/queue"}[below(3)] : key();
  };
  const auto value = [&]() -> std::string {
    switch (below(8)) {
      case 0:
        return "";
      case 1:
        return "text";
      case 2:
        return std::string(20'000, 'L');  // Held by reference in replies.
      case 3:
        return " +7x";
      case 4:
        return "9223372036854775807";
      default:
        return std::to_string(below(5));
    }
  };
  Operation operation;
  operation.op = often[below(often.size() - (mix.stock ? 1 : 0))];
  const bool of_queue = operation.op == StoreOp::QueuePush || operation.op == StoreOp::QueuePop ||
                        operation.op == StoreOp::QueueLen;
  operation.key = of_queue ? queue() : key();
  operation.value = value();
  operation.desired = value();
  operation.number = operation.op == StoreOp::Barrier ? static_cast<std::int64_t>(below(5))
                                                      : static_cast<std::int64_t>(below(7)) - 3;
  if (operation.op == StoreOp::MultiSet) {
    for (std::size_t i = below(4); i > 0; --i) {
      operation.items.push_back(key());
      operation.items.push_back(value());
    }
  } else if (operation.op == StoreOp::Wait && below(4) == 0) {
    operation.items = {queue()};
  } else {
    for (std::size_t i = below(4); i > 0; --i) operation.items.push_back(key());
  }
  return operation;
}

std::string sorted_list(const std::string& reply) {
  std::string_view rest(reply);
  if (rest.size() < 8) return reply;
  std::string sorted(rest.substr(0, 8));
  rest.remove_prefix(8);
  std::vector<std::string> keys;
  while (rest.size() >= 8) {
    std::uint64_t size = 0;
    std::memcpy(&size, rest.data(), 8);
    if (size > rest.size() - 8) return reply;
    keys.emplace_back(rest.substr(8, size));
    rest.remove_prefix(8 + size);
  }
  std::sort(keys.begin(), keys.end());
  for (const std::string& key : keys) sorted += string_bytes(key);
  return sorted + std::string(rest);
}

}  // namespace ddprun::rendezvous::testing
