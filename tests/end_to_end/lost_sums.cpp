// With LOST_SUMS=1 the CPU's communicator behaves as NCCL's: an all-reduce or a broadcast that a
// lost peer ended returns as if it had succeeded, what it leaves is anything, and wait() or the
// next call throws. In the place of make_cpu_communicator(), by the linker's --wrap.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "worker/communicator.h"

namespace {

using namespace ddprun::worker;

class LostSums : public Communicator {
 public:
  explicit LostSums(std::unique_ptr<Communicator> real) : real_(std::move(real)) {}

  int rank() const override { return real_->rank(); }
  int world_size() const override { return real_->world_size(); }
  std::string description() const override { return real_->description(); }
  bool is_cuda() const override { return false; }
  bool shares_memory() const override { return real_->shares_memory(); }
  void all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                  Stream stream) override {
    throw_if_lost();
    try {
      real_->all_reduce(data, count, type, op, stream);
    } catch (const CommunicatorError&) {
      lost_ = true;
    }
  }
  void all_gather(const void* send, void* recv, std::size_t count, DataType type,
                  Stream stream) override {
    throw_if_lost();
    real_->all_gather(send, recv, count, type, stream);
  }
  void reduce_scatter(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op,
                      Stream stream) override {
    throw_if_lost();
    real_->reduce_scatter(send, recv, count, type, op, stream);
  }
  void broadcast(void* data, std::size_t count, DataType type, int root, Stream stream) override {
    throw_if_lost();
    try {
      real_->broadcast(data, count, type, root, stream);
    } catch (const CommunicatorError&) {
      if (rank() != root)
        std::memset(data, 0x3c, count * bytes_of(type));  // No NaN, and no weights.
      lost_ = true;
    }
  }
  void send(const void* data, std::size_t count, DataType type, int peer, Stream stream) override {
    real_->send(data, count, type, peer, stream);
  }
  void recv(void* data, std::size_t count, DataType type, int peer, Stream stream) override {
    real_->recv(data, count, type, peer, stream);
  }
  void barrier(Stream stream) override {
    throw_if_lost();
    real_->barrier(stream);
  }
  void wait(Stream /*stream*/) override { throw_if_lost(); }
  std::shared_ptr<void> allocate(std::size_t bytes) override { return real_->allocate(bytes); }
  void abort(const std::string& reason) noexcept override { real_->abort(reason); }
  // Of what was lost in a sum alone: a step that hears of it before has no sums.
  std::optional<std::string> aborted() const override {
    if (!lost_) return std::nullopt;
    return "a peer is gone";
  }

 private:
  void throw_if_lost() const {
    if (lost_) throw CommunicatorError("a peer is gone");
  }

  const std::unique_ptr<Communicator> real_;
  std::atomic<bool> lost_ = false;
};

using Made = std::unique_ptr<Communicator>;

}  // namespace

Made make_real(const WorkerEnv& env, const CommunicatorOptions& options) asm(
    "__real__ZN6ddprun6worker21make_cpu_communicatorERKNS0_9WorkerEnvERKNS0_"
    "19CommunicatorOptionsE");
Made make_wrapped(const WorkerEnv& env, const CommunicatorOptions& options) asm(
    "__wrap__ZN6ddprun6worker21make_cpu_communicatorERKNS0_9WorkerEnvERKNS0_"
    "19CommunicatorOptionsE");
Made make_wrapped(const WorkerEnv& env, const CommunicatorOptions& options) {
  Made made = make_real(env, options);
  if (std::getenv("LOST_SUMS") == nullptr) return made;
  return std::make_unique<LostSums>(std::move(made));
}
