// A world of ranks that are threads of this process, with a communicator that can be made to fail.
//
// Lets the tests of DistributedDataParallel see what a real world hides: when each bucket was
// reduced, and what a rank does whose peer is gone. Sums are taken in rank order.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/testing/patience.h"
#include "worker/communicator.h"
#include "worker/torch/libtorch.h"

namespace ddprun::worker {

// Where the ranks meet. Every wait ends after `timeout`.
class ThreadWorld {
 public:
  explicit ThreadWorld(int size) : size_(size), arrived_(static_cast<std::size_t>(size)) {}

  int size() const { return size_; }

  // Calls `combine` once, with every rank's pointer, when all ranks have come.
  void meet(int rank, void* data, const std::function<void(const std::vector<void*>&)>& combine);

  void abort(const std::string& reason);

  std::atomic<int> reductions{0};
  std::chrono::milliseconds timeout = testing::patience(std::chrono::seconds{20});

 private:
  int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<void*> arrived_;
  int count_ = 0;
  std::uint64_t generation_ = 0;
  std::string abort_reason_;
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(ThreadWorld& world, int rank) : world_(world), rank_(rank) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_.size(); }
  std::string description() const override { return "threads of a test"; }
  bool is_cuda() const override { return false; }

  void all_reduce(void* data, std::size_t count, DataType type, ReduceOp op, Stream) override;
  void all_gather(const void* send, void* recv, std::size_t count, DataType type, Stream) override;
  void reduce_scatter(const void*, void*, std::size_t, DataType, ReduceOp, Stream) override;
  void broadcast(void* data, std::size_t count, DataType type, int root, Stream) override;
  void send(const void*, std::size_t, DataType, int, Stream) override;
  void recv(void*, std::size_t, DataType, int, Stream) override;
  void barrier(Stream) override;
  std::shared_ptr<void> allocate(std::size_t bytes) override;
  void abort(const std::string& reason) noexcept override { world_.abort(reason); }
  void wait(Stream) override {
    if (lost) throw CommunicatorError("what was broadcast is garbage");
  }

  // Throws std::logic_error when something still holds memory that allocate() gave.
  void check_released() const;

  std::function<void()> before_all_reduce;  // Runs in the thread that reduces; may throw.
  // A broadcast leaves garbage on all ranks, and wait() alone says so: as a device does where a
  // peer is gone.
  bool lost = false;

 private:
  ThreadWorld& world_;
  int rank_;
  std::shared_ptr<void> in_use_ = std::make_shared<int>();  // Shared with all memory given.
};

// Runs `body` as every rank of a world, each in a thread of its own with one LibTorch thread, and
// returns what each rank threw. A rank that throws aborts the world, as a process that dies does,
// and one that returns ends what others still wait for. It must have released the memory of its
// communicator, as communicator.h demands.
std::vector<std::exception_ptr> run_ranks(int size,
                                          const std::function<void(ThreadCommunicator&)>& body);

// The same for bodies that must not throw: rethrows the first exception that is not the consequence
// of another rank's.
void run_ranks_well(int size, const std::function<void(ThreadCommunicator&)>& body);

// Catch2's CHECK is for one thread. In a rank a failed check ends the rank.
#define RANK_CHECK(...)                                                        \
  do {                                                                         \
    if (!(__VA_ARGS__)) {                                                      \
      throw std::logic_error(std::string("line ") + std::to_string(__LINE__) + \
                             ": check failed: " #__VA_ARGS__);                 \
    }                                                                          \
  } while (false)

// LibTorch's default generator is one for all threads of the process: `make` has it for itself.
std::mutex& generator_mutex();
template <class Make>
auto seeded(std::uint64_t seed, Make make) {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(seed);
  return make();
}

// The text of an exception of type E, or "other: ..." or "none".
template <class E>
std::string message_of(const std::exception_ptr& error) {
  if (!error) return "none";
  try {
    std::rethrow_exception(error);
  } catch (const E& expected) {
    return expected.what();
  } catch (const std::exception& other) {
    return std::string("other: ") + other.what();
  }
}

}  // namespace ddprun::worker
