// What a client may ask of a store, as a value: to be carried out by the model, or sent as bytes.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/wire/wire.h"

namespace ddprun::rendezvous::testing {

// As they stand in a request or a reply.
template <class Number>
std::string number_bytes(Number number) {
  std::string out;
  put_number(out, number);
  return out;
}
inline std::string string_bytes(std::string_view text) {
  std::string out;
  put_string(out, text);
  return out;
}

struct Operation {
  StoreOp op = StoreOp::Ping;
  std::string key, value, desired;
  std::int64_t number = 0;
  std::vector<std::string> items;  // Keys; for MULTI_SET key, value, key, value ...
};

// The bytes that a client of torch 2.2 or later sends.
std::string encode(const Operation& operation);

// Operations at random, on few keys, so that clients meet.
struct OperationMix {
  // Only what torch's own server does right too, and keeps to: no BARRIER (2.12), no waits on a
  // queue and a key together, no name that is both.
  bool stock = false;
};
Operation random_operation(std::minstd_rand& random, OperationMix mix);

// LIST_KEYS has no order: the reply with its keys sorted. Other bytes come back as they are.
std::string sorted_list(const std::string& reply);

}  // namespace ddprun::rendezvous::testing
