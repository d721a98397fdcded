// NCCL's communicator for cases that are written for the CPU: each rank has a stream, and a call
// returns when what it queued is done. Memory is the host's, so only over tests/fake_cuda; and
// since it may be gone after an error, that is thrown when no kernel writes any more.
#pragma once

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "tests/testing/mapped_exchange.h"
#include "tests/testing/patience.h"
#include "worker/nccl/nccl_communicator.h"

namespace ddprun::worker {

class WaitingNccl final : public Communicator {
 public:
  WaitingNccl(int rank, int world_size, Epoch epoch, std::shared_ptr<MappedExchange::Board> board,
              const CommunicatorOptions& options) {
    MappedExchange exchange(std::move(board), rank);
    check_cuda(cudaSetDevice(options.cuda_device.value()), "cudaSetDevice");
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    nccl_ = std::make_unique<NcclCommunicator>(
        connect_nccl_peers(rank, world_size, epoch, exchange, options), options);
  }
  ~WaitingNccl() override {
    nccl_.reset();
    cudaStreamDestroy(stream_);
  }

  int rank() const override { return nccl_->rank(); }
  int world_size() const override { return nccl_->world_size(); }
  std::string description() const override { return nccl_->description(); }
  bool is_cuda() const override { return true; }
  std::optional<int> cuda_device() const override { return nccl_->cuda_device(); }

  void all_reduce(void* data, std::size_t count, DataType type, ReduceOp op, Stream) override {
    finish([&] { nccl_->all_reduce(data, count, type, op, stream_); });
  }
  void all_gather(const void* send, void* recv, std::size_t count, DataType type, Stream) override {
    finish([&] { nccl_->all_gather(send, recv, count, type, stream_); });
  }
  void reduce_scatter(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op,
                      Stream) override {
    finish([&] { nccl_->reduce_scatter(send, recv, count, type, op, stream_); });
  }
  void broadcast(void* data, std::size_t count, DataType type, int root, Stream) override {
    finish([&] { nccl_->broadcast(data, count, type, root, stream_); });
  }
  void send(const void* data, std::size_t count, DataType type, int peer, Stream) override {
    finish([&] { nccl_->send(data, count, type, peer, stream_); });
  }
  void recv(void* data, std::size_t count, DataType type, int peer, Stream) override {
    finish([&] { nccl_->recv(data, count, type, peer, stream_); });
  }
  void barrier(Stream) override { nccl_->barrier(stream_); }
  std::shared_ptr<void> allocate(std::size_t bytes) override { return nccl_->allocate(bytes); }
  void replayed(Stream) override {
    finish([&] { nccl_->replayed(stream_); });
  }
  void wait(Stream = nullptr) override {
    finish([] {});
  }
  void all_gather_on_host(const void* send, void* recv, std::size_t bytes, Stream) override {
    nccl_->all_gather_on_host(send, recv, bytes, stream_);
  }
  void abort(const std::string& reason) noexcept override { nccl_->abort(reason); }
  void abort_unless_told(const std::string& reason) noexcept override {
    nccl_->abort_unless_told(reason);
  }

  NcclCommunicator& nccl() { return *nccl_; }
  cudaStream_t stream() const { return stream_; }

 private:
  template <typename Call>
  void finish(const Call& call) {
    try {
      call();
      nccl_->wait(stream_);
      // Or who launches a kernel next would take it for an error of that.
      check_cuda(cudaGetLastError(), "what a call has left behind");
    } catch (const CommunicatorError&) {
      const auto deadline = std::chrono::steady_clock::now() + testing::patience(stall_limit);
      while (cudaStreamQuery(stream_) == cudaErrorNotReady &&
             std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
      }
      throw;
    }
  }

  static constexpr std::chrono::seconds stall_limit{
      2};  // A device that stands still writes nothing.

  cudaStream_t stream_ = nullptr;
  std::unique_ptr<NcclCommunicator> nccl_;
};

}  // namespace ddprun::worker
