// What a store does, in the simplest way there is: maps, and a list of those who wait. Written from
// docs/store_protocol.md and not from the store, which tests compare with it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/rendezvous/store/store_operation.h"

namespace ddprun::rendezvous::testing {

class StoreModel {
 public:
  struct Outcome {
    std::string reply;       // To the caller.
    std::vector<int> woken;  // Others, who get a byte 0, in this order.
    bool closed = false;     // The caller's connection ends.
  };
  Outcome apply(int client, const Operation& operation);
  Outcome disconnect(int client);

  bool waiting(int client) const;
  bool waited_for(std::string_view key) const;

 private:
  struct Wait {
    int client = 0;
    std::vector<std::string> missing;
    bool barrier = false;
    std::int64_t target = 0;
  };

  bool ready(const std::string& key) const;
  void put(const std::string& key, const std::string& value);
  void release(const std::string& key, bool only_one);
  void release_barriers(const std::string& key);
  void add(const Operation& operation);
  void compare_set(const Operation& operation);
  void wait(const Operation& operation);
  void barrier(const Operation& operation);
  void pop(const Operation& operation);
  void end_wait(int client);
  void answer_call(int client, const Operation* operation);
  void list_keys();

  std::map<std::string, std::string> keys_;
  std::map<std::string, std::deque<std::string>> queues_;
  std::vector<Wait> waits_;            // The oldest first.
  std::map<int, std::string> called_;  // Clients that a push woke, and have said nothing since.
  Outcome outcome_;                    // Of the operation under way.
  int caller_ = 0;
};

}  // namespace ddprun::rendezvous::testing
