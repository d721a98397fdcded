// One meeting point for all collectives: the last rank to come does the work for all.
#include "tests/worker/torch/thread_communicator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "worker/torch/replica_threads.h"

namespace ddprun::worker {
namespace {

template <class T, class Accumulator>
void reduce(const std::vector<void*>& ranks, std::size_t count, ReduceOp op) {
  for (std::size_t i = 0; i < count; ++i) {
    auto result = static_cast<Accumulator>(static_cast<T*>(ranks[0])[i]);
    for (std::size_t r = 1; r < ranks.size(); ++r) {
      const auto value = static_cast<Accumulator>(static_cast<T*>(ranks[r])[i]);
      if (op == ReduceOp::Max) {
        result = std::max(result, value);
      } else if (op == ReduceOp::Min) {
        result = std::min(result, value);
      } else {
        result = static_cast<Accumulator>(result + value);
      }
    }
    if (op == ReduceOp::Average) {
      result = static_cast<Accumulator>(result / static_cast<Accumulator>(ranks.size()));
    }
    for (void* rank : ranks) static_cast<T*>(rank)[i] = static_cast<T>(result);
  }
}

void reduce(const std::vector<void*>& ranks, std::size_t count, DataType type, ReduceOp op) {
  switch (type) {
    case DataType::Float32:
      return reduce<float, float>(ranks, count, op);
    case DataType::Float64:
      return reduce<double, double>(ranks, count, op);
    case DataType::Float16:
      return reduce<at::Half, float>(ranks, count, op);
    case DataType::BFloat16:
      return reduce<at::BFloat16, float>(ranks, count, op);
    case DataType::Int32:
      return reduce<std::int32_t, std::int32_t>(ranks, count, op);
    case DataType::Int64:
      return reduce<std::int64_t, std::int64_t>(ranks, count, op);
    case DataType::UInt8:
      return reduce<std::uint8_t, int>(ranks, count, op);
  }
}

}  // namespace

void ThreadWorld::meet(int rank, void* data,
                       const std::function<void(const std::vector<void*>&)>& combine) {
  std::unique_lock lock(mutex_);
  if (!abort_reason_.empty()) throw CommunicatorError(abort_reason_);
  arrived_[static_cast<std::size_t>(rank)] = data;
  if (++count_ == size_) {
    combine(arrived_);
    count_ = 0;
    ++generation_;
    changed_.notify_all();
    return;
  }
  const std::uint64_t mine = generation_;
  const bool woken = changed_.wait_for(
      lock, timeout, [&] { return generation_ != mine || !abort_reason_.empty(); });
  if (generation_ != mine) return;
  throw CommunicatorError(woken ? abort_reason_ : "a rank did not come in time");
}

void ThreadWorld::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (abort_reason_.empty()) abort_reason_ = reason;
  changed_.notify_all();
}

void ThreadCommunicator::all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                                    Stream) {
  if (before_all_reduce) before_all_reduce();
  world_.meet(rank_, data,
              [&](const std::vector<void*>& ranks) { reduce(ranks, count, type, op); });
  if (rank_ == 0) ++world_.reductions;
}

void ThreadCommunicator::all_gather(const void* send, void* recv, std::size_t count, DataType type,
                                    Stream) {
  const std::size_t bytes = count * bytes_of(type);
  if (bytes == 0) return world_.meet(rank_, recv, [](const std::vector<void*>&) {});
  std::memcpy(static_cast<char*>(recv) + static_cast<std::size_t>(rank_) * bytes, send, bytes);
  world_.meet(rank_, recv, [&](const std::vector<void*>& ranks) {
    for (std::size_t from = 0; from < ranks.size(); ++from) {
      for (std::size_t to = 0; to < ranks.size(); ++to) {
        if (from == to) continue;
        std::memcpy(static_cast<char*>(ranks[to]) + from * bytes,
                    static_cast<char*>(ranks[from]) + from * bytes, bytes);
      }
    }
  });
}

void ThreadCommunicator::broadcast(void* data, std::size_t count, DataType type, int root, Stream) {
  if (lost) {
    std::memset(data, 0x7f, count * bytes_of(type));
    return;
  }
  world_.meet(rank_, data, [&](const std::vector<void*>& ranks) {
    for (void* rank : ranks) {
      if (rank != ranks[static_cast<std::size_t>(root)]) {
        std::memcpy(rank, ranks[static_cast<std::size_t>(root)], count * bytes_of(type));
      }
    }
  });
}

void ThreadCommunicator::barrier(Stream) {
  world_.meet(rank_, nullptr, [](const std::vector<void*>&) {});
}

// DistributedDataParallel needs none of these three.
void ThreadCommunicator::reduce_scatter(const void*, void*, std::size_t, DataType, ReduceOp,
                                        Stream) {
  throw CommunicatorError("threads of a test do not reduce_scatter");
}
void ThreadCommunicator::send(const void*, std::size_t, DataType, int, Stream) {
  throw CommunicatorError("threads of a test do not send");
}
void ThreadCommunicator::recv(void*, std::size_t, DataType, int, Stream) {
  throw CommunicatorError("threads of a test do not receive");
}

std::shared_ptr<void> ThreadCommunicator::allocate(std::size_t bytes) {
  constexpr std::size_t alignment = 64;
  const std::size_t padded = (bytes + alignment) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, padded);
  std::memset(memory, 0, padded);
  return {memory, [in_use = in_use_](void* pointer) { std::free(pointer); }};
}

void ThreadCommunicator::check_released() const {
  if (in_use_.use_count() == 1) return;
  throw std::logic_error("something holds memory of the communicator that is about to go");
}

std::vector<std::exception_ptr> run_ranks(int size,
                                          const std::function<void(ThreadCommunicator&)>& body) {
  settle_vector_functions();
  ThreadWorld world(size);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      ThreadCommunicator communicator(world, rank);
      try {
        body(communicator);
        communicator.check_released();
        world.abort("rank " + std::to_string(rank) + " closed the communicator");
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
        world.abort(std::string("a peer died: ") + error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void run_ranks_well(int size, const std::function<void(ThreadCommunicator&)>& body) {
  std::exception_ptr first;
  for (const std::exception_ptr& error : run_ranks(size, body)) {
    if (!error) continue;
    if (!first) first = error;
    if (message_of<CommunicatorError>(error).rfind("a peer died", 0) != 0) first = error;
  }
  if (first) std::rethrow_exception(first);
}

std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace ddprun::worker
