// The exchange of addresses through the store, and through common memory.
#include "worker/peers/exchange.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <span>
#include <thread>

#include "rendezvous/store_client.h"
#include "worker/network_interface.h"
#include "worker/worker_store.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

// A launcher's store serves one attempt at a time. One that rank 0 hosts knows of none.
std::string attempt_of(const WorkerEnv& env) {
  return env.use_agent_store ? std::to_string(env.restart_count) : std::string();
}

rendezvous::StoreClientOptions client_options(const WorkerEnv& env,
                                              const CommunicatorOptions& options) {
  auto result = store_client_options(env, options);
  result.attempt = attempt_of(env);
  return result;
}

class StoreExchange : public AddressExchange {
 public:
  StoreExchange(const WorkerEnv& env, const CommunicatorOptions& options,
                const StoreEndpoint& endpoint)
      : rank_(env.rank),
        world_size_(env.world_size),
        limit_(within_limit(options)),
        store_(endpoint.host, endpoint.port, client_options(env, options)),
        address_(chosen_address(options.interface)),
        prefix_("ddprun/communicator/" + env.run_id + "/" + std::to_string(env.restart_count)) {
    if (address_.empty()) address_ = env.own_address;
    if (address_.empty()) address_ = store_.local_address();
    // An attempt may make several communicators, in the same order on all ranks: each has keys of
    // its own.
    const auto number = store_.add(prefix_ + "/count/" + std::to_string(rank_), 1);
    prefix_ += '/';
    prefix_ += std::to_string(number);
  }

  std::vector<std::string> all_gather(const std::string& mine,
                                      Clock::time_point deadline) override {
    const std::string round = prefix_ + "/" + std::to_string(round_++) + "/";
    store_.set(round + std::to_string(rank_), mine);
    std::vector<std::string> keys;
    for (int rank = 0; rank < world_size_; ++rank) keys.push_back(round + std::to_string(rank));
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    try {
      store_.wait(keys, std::max(left, std::chrono::milliseconds{1}));
    } catch (const rendezvous::StoreTimeout&) {
      throw rendezvous::StoreError(missing_of(keys) + " did not come " + limit_);
    }
    return store_.multi_get(keys);
  }

  std::string local_address() const override { return address_; }

 private:
  std::string missing_of(const std::vector<std::string>& keys) {
    std::string missing;
    for (int rank = 0; rank < world_size_; ++rank) {
      if (store_.check(std::span(&keys[static_cast<std::size_t>(rank)], 1))) continue;
      missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(rank);
    }
    return missing;
  }

  int rank_;
  int world_size_;
  std::string limit_;
  rendezvous::StoreClient store_;
  std::string address_;
  std::string prefix_;
  int round_ = 0;
};

// Turns the store's errors into ours, with what they mean for the communicator.
class CheckedExchange : public AddressExchange {
 public:
  CheckedExchange(const WorkerEnv& env, const CommunicatorOptions& options)
      : env_(env), endpoint_(open_store(env, options)) {
    guarded([&] { inner_ = std::make_unique<StoreExchange>(env, options, endpoint_); });
  }
  std::vector<std::string> all_gather(const std::string& mine,
                                      Clock::time_point deadline) override {
    std::vector<std::string> texts;
    guarded([&] { texts = inner_->all_gather(mine, deadline); });
    return texts;
  }
  std::string local_address() const override { return inner_->local_address(); }

 private:
  template <typename Action>
  void guarded(Action action) {
    try {
      action();
    } catch (const rendezvous::StoreError& error) {
      throw CommunicatorError("rank " + std::to_string(env_.rank) + " of " +
                              std::to_string(env_.world_size) +
                              " could not meet the others through the store at " + endpoint_.host +
                              ":" + std::to_string(endpoint_.port) + ": " + error.what());
    }
  }

  WorkerEnv env_;
  StoreEndpoint endpoint_;
  std::unique_ptr<StoreExchange> inner_;
};

}  // namespace

std::unique_ptr<AddressExchange> make_store_exchange(const WorkerEnv& env,
                                                     const CommunicatorOptions& options) {
  return std::make_unique<CheckedExchange>(env, options);
}

struct MappedExchange::Board {
  struct Slot {
    std::atomic<std::uint32_t> bytes;  // 0 until the text is there; 1 + its length then.
    char text[text_bytes_max];
  };

  int world_size = 0;
  std::size_t mapped_bytes = 0;
  Slot* slots = nullptr;  // rounds_max * world_size

  ~Board() {
    if (slots != nullptr) ::munmap(slots, mapped_bytes);
  }
  Slot& slot(int round, int rank) { return slots[round * world_size + rank]; }
};

std::shared_ptr<MappedExchange::Board> MappedExchange::create(int world_size) {
  auto board = std::make_shared<Board>();
  board->world_size = world_size;
  board->mapped_bytes = sizeof(Board::Slot) * static_cast<std::size_t>(rounds_max * world_size);
  void* memory = ::mmap(nullptr, board->mapped_bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  board->slots = static_cast<Board::Slot*>(memory);  // Zero pages are empty slots.
  return board;
}

std::vector<std::string> MappedExchange::all_gather(const std::string& mine,
                                                    Clock::time_point deadline) {
  if (round_ >= rounds_max || mine.size() > text_bytes_max) {
    throw CommunicatorError("MappedExchange: too many rounds or too long a text");
  }
  Board::Slot& own = board_->slot(round_, rank_);
  std::memcpy(own.text, mine.data(), mine.size());
  own.bytes.store(static_cast<std::uint32_t>(mine.size()) + 1, std::memory_order_release);
  std::vector<std::string> texts;
  for (int rank = 0; rank < board_->world_size; ++rank) {
    Board::Slot& slot = board_->slot(round_, rank);
    while (slot.bytes.load(std::memory_order_acquire) == 0) {
      if (Clock::now() >= deadline) {
        throw CommunicatorError("rank " + std::to_string(rank) +
                                " did not give its address in time");
      }
      std::this_thread::sleep_for(std::chrono::microseconds{200});
    }
    texts.emplace_back(slot.text, slot.bytes.load(std::memory_order_acquire) - 1);
  }
  ++round_;
  return texts;
}

}  // namespace ddprun::worker
