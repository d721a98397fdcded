// Keys, values, counters, queues and parked waits of one attempt: what c10d's TCPStore keeps,
// without sockets, threads or a clock.
//
//   StoreRequest --> handle() --> the caller's ReplyBuffer
//                           \---> `woken`: parked connections that now get the byte 0
//
// A key that is waited for but absent is an entry without a value ("placeholder"); it does not
// count as a key. Semantics that look odd are those that c10d's clients rely on; each is listed in
// docs/store_protocol.md. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rendezvous/store/memory_budget.h"
#include "rendezvous/store/store_reply.h"
#include "rendezvous/wire/store_attempt.h"
#include "rendezvous/wire/wire.h"

namespace ddprun::rendezvous {

// Small numbers that are used again once their connection is gone.
using ConnectionId = std::uint32_t;

struct StoreLimits {
  std::size_t value_bytes_max = 64u << 20;   // What APPEND may grow a value to.
  std::size_t reply_bytes_max = 256u << 20;  // Of one MULTI_GET or LIST_KEYS.
  // Of all parked waits and barriers: what they are linked by, and keys that only waits know.
  std::size_t wait_bytes_max = std::size_t{2} << 30;
};

class Store {
 public:
  // `budget` must outlive the store. `seed` makes the hash of keys unpredictable to clients.
  Store(StoreLimits limits, MemoryBudget& budget, std::uint64_t seed);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Carries out one request. An empty result: done; the answer, if the operation has one, is at
  // the end of `reply`, and connections whose wait is over are at the end of `woken` (never the
  // caller itself). Otherwise the request was not carried out (of a MULTI_SET, not to its end), and
  // the connection must be closed for this reason: the protocol has no error reply.
  std::string handle(ConnectionId caller, const StoreRequest& request, ReplyBuffer& reply,
                     std::vector<ConnectionId>& woken);

  // The connection is gone: its wait ends. O(keys it waits for). `woken`: as of handle().
  void disconnect(ConnectionId connection, std::vector<ConnectionId>& woken);
  // A command of it has begun that is not whole yet. A whole one says so itself.
  void end_wait(ConnectionId connection) { unpark(connection); }

  // A new attempt: no keys, no queues, no waits.
  void clear();
  // What clients that ask are told (rendezvous/wire/store_attempt.h). An empty name fits every
  // client.
  void set_attempt(StoreAttempt attempt) { attempt_ = std::move(attempt); }

  // The value of a key as a number, as ADD would take it.
  std::optional<std::int64_t> number(std::string_view key) const;
  std::size_t num_keys() const { return num_keys_; }
  // For the tests and the fuzzer: the store itself keeps to StoreLimits::wait_bytes_max.
  std::size_t wait_bytes() const { return wait_bytes_; }
  bool waiting(ConnectionId connection) const;

 private:
  struct Entry;
  using Keyed = std::pair<const std::string, Entry>;  // A key and its entry; never moves.

  // One key of one parked wait, in the list of the entry it waits for.
  struct Node {
    Keyed* keyed = nullptr;  // Null once satisfied.
    Node* previous = nullptr;
    Node* next = nullptr;
    ConnectionId connection = 0;
  };
  struct NodeList {
    Node* first = nullptr;  // The oldest.
    Node* last = nullptr;
  };
  // The wait of one connection. It is parked while `missing` is not 0.
  struct Parked {
    std::vector<Node> nodes;  // Not resized while parked: entries point to them.
    std::size_t missing = 0;  // Nodes not yet satisfied.
    bool barrier = false;
    std::int64_t barrier_target = 0;  // The count that releases it.
    Keyed* called_to = nullptr;       // The queue whose push has woken it, until it says something.
  };
  // What few entries need.
  struct Extra {
    std::deque<StoreValue> queue;
    std::size_t called = 0;  // Connections that are called_to it: the entry stays for them.
    NodeList barriers;
    std::int64_t barrier_target_min = 0;  // No parked barrier has a lower target.
  };
  struct Entry {
    StoreValue value;  // Empty if not present.
    bool present = false;
    bool placeholder = false;  // Counted in wait_bytes_.
    NodeList waiters;
    std::unique_ptr<Extra> extra;

    bool ready() const { return present || (extra && !extra->queue.empty()); }
  };
  struct Hash {
    using is_transparent = void;
    std::uint64_t seed;
    std::size_t operator()(std::string_view key) const;
  };
  // What handle() was given.
  struct Call {
    ConnectionId caller;
    const StoreRequest& request;
    ReplyBuffer& reply;
    std::vector<ConnectionId>& woken;
  };

  // The operations on keys.
  std::string set(const Call& call);
  std::string compare_set(const Call& call);
  std::string add(const Call& call);
  std::string append(const Call& call);
  std::string multi_get(const Call& call);
  std::string multi_set(const Call& call);
  std::string list_keys(const Call& call);
  std::string get(const Call& call);
  std::string delete_key(const Call& call);
  std::string tell_attempt(const Call& call);
  // What waits, or is waited for in order.
  std::string check(const Call& call);
  std::string wait(const Call& call);
  std::string barrier(const Call& call);
  std::string queue_push(const Call& call);
  std::string queue_pop(const Call& call);
  std::string queue_len(const Call& call);
  void wake_one(Keyed& keyed, std::vector<ConnectionId>& woken);
  void answer_call(ConnectionId connection, const StoreRequest* request,
                   std::vector<ConnectionId>& woken);

  // The entries, and what they take of the budget.
  Keyed* find(std::string_view key);
  Keyed* find_or_create(std::string_view key);  // Null: over the memory budget.
  bool set_value(std::string_view key, std::string_view value, StoreBlock* owned,
                 std::vector<ConnectionId>& woken);
  bool assign(StoreValue& stored, std::string_view value, StoreBlock* owned);
  bool set_number(std::string_view key, std::int64_t number, std::vector<ConnectionId>& woken);
  void value_changed(Keyed& keyed, std::vector<ConnectionId>& woken);
  Extra* extra_of(Entry& entry);  // Made if there is none. Null: over the memory budget.
  void erase_if_unused(Keyed* keyed);
  void count_placeholder(Keyed& keyed);
  bool charge(std::size_t before, std::size_t after);

  void release_barriers(Keyed& keyed, std::vector<ConnectionId>& woken);
  std::string park(ConnectionId connection, std::size_t nodes);
  void unpark(ConnectionId connection);
  void link(Node& node, Keyed& keyed, NodeList& list);
  void unlink(Node& node);
  bool satisfy(Node& node, std::vector<ConnectionId>& woken);
  void release_nodes(Parked& parked);

  StoreLimits limits_;
  MemoryBudget& budget_;
  std::unordered_map<std::string, Entry, Hash, std::equal_to<>> entries_;
  std::vector<Parked> parked_;             // By ConnectionId.
  std::vector<std::string_view> missing_;  // Scratch of wait().
  std::vector<const Keyed*> found_;        // Scratch of multi_get().
  StoreAttempt attempt_;
  std::size_t num_keys_ = 0;
  std::size_t wait_bytes_ = 0;  // What limits_.wait_bytes_max bounds.
  std::size_t charged_ = 0;     // What this store took from the budget.
};

}  // namespace ddprun::rendezvous
