// The exchange of addresses through the store, and through common memory.
#include "worker/communicator_exchange.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "rendezvous/hosted_store.h"
#include "rendezvous/store_client.h"
#include "worker/communicator.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

// Without a launcher there is no store unless rank 0 hosts it, as PyTorch's rank 0 does. It lives
// as long as the process: others may come to their first communicator late. A port in use is no
// error: then somebody hosts a store there already, or the client says what it found.
void host_store_if_asked(const WorkerEnv& env) {
  if (env.use_agent_store || env.rank != 0 || env.world_size == 1 || env.master_port == 0) return;
  static std::mutex mutex;
  static auto* const hosted = new std::map<std::uint16_t, rendezvous::HostedStore>;
  const std::lock_guard lock(mutex);
  if (hosted->count(env.master_port) != 0) return;
  const bool local = env.master_addr == "127.0.0.1" || env.master_addr == "localhost";
  try {
    hosted->try_emplace(env.master_port, local ? "127.0.0.1" : "", env.master_port);
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::address_in_use) {
      throw rendezvous::StoreError(std::string("rank 0 cannot host the store: ") + error.what());
    }
  }
}

// A launcher's store serves one attempt at a time. One that rank 0 hosts knows of none.
std::string attempt_of(const WorkerEnv& env) {
  return env.use_agent_store ? std::to_string(env.restart_count) : std::string();
}

class StoreExchange : public AddressExchange {
 public:
  // After host_store_if_asked().
  StoreExchange(const WorkerEnv& env, std::chrono::milliseconds timeout)
      : rank_(env.rank),
        world_size_(env.world_size),
        store_(env.master_addr, env.master_port, {.timeout = timeout, .attempt = attempt_of(env)}),
        prefix_("ddprun/communicator/" + env.run_id + "/" + std::to_string(env.restart_count)) {
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
    store_.wait(keys, std::max(left, std::chrono::milliseconds{1}));
    return store_.multi_get(keys);
  }

  std::string local_address() const override { return store_.local_address(); }

 private:
  int rank_;
  int world_size_;
  rendezvous::StoreClient store_;
  std::string prefix_;
  int round_ = 0;
};

// Turns the store's errors into ours, with what they mean for the communicator.
class CheckedExchange : public AddressExchange {
 public:
  CheckedExchange(const WorkerEnv& env, std::chrono::milliseconds timeout) : env_(env) {
    guarded([&] {
      host_store_if_asked(env);
      inner_ = std::make_unique<StoreExchange>(env, timeout);
    });
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
      throw CommunicatorError(
          "rank " + std::to_string(env_.rank) + " of " + std::to_string(env_.world_size) +
          " could not meet the others through the store at " + env_.master_addr + ":" +
          std::to_string(env_.master_port) + ": " + error.what());
    }
  }

  WorkerEnv env_;
  std::unique_ptr<StoreExchange> inner_;
};

}  // namespace

std::unique_ptr<AddressExchange> make_store_exchange(const WorkerEnv& env,
                                                     std::chrono::milliseconds timeout) {
  return std::make_unique<CheckedExchange>(env, timeout);
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
