// The communicator over MPI, for clusters whose network MPI knows best. Part of the MPI module.
//
// It moves bytes with MPI_Isend and MPI_Irecv and does the rest itself, as the CPU communicator:
// rank r collects the contributions to the r-th slice of a chunk, combines them over the same tree
// of ranks, and hands the result to all. MPI's own MPI_Iallreduce is not used, because
//   - its sums have other bits than those of the CPU communicator, and may differ with placement;
//   - it knows no 16-bit floats, and its maximum loses NaN;
//   - a collective of MPI cannot be cancelled and does not say who is late.
//
// Every call is announced to all ranks first, so that different calls are an error on all of them.
// What MPI cannot do: tell of a peer's death. mpirun ends the whole job then.
#pragma once

#include <exception>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "worker/communicator.h"
#include "worker/mpi/mpi_messages.h"
#include "worker/mpi/mpi_peers.h"

namespace ddprun::worker {

class MpiCommunicator final : public Communicator {
 public:
  // Throws CommunicatorError when MPI and `env` disagree about who this rank is.
  MpiCommunicator(const WorkerEnv& env, const CommunicatorOptions& options);
  ~MpiCommunicator() override;

  int rank() const override { return peers_.rank(); }
  int world_size() const override { return peers_.world_size(); }
  std::string description() const override { return peers_.description(); }
  bool is_cuda() const override { return false; }

  void all_reduce(void* data, std::size_t count, DataType type, ReduceOp op, Stream) override;
  void all_gather(const void* send, void* recv, std::size_t count, DataType type, Stream) override;
  void reduce_scatter(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op,
                      Stream) override;
  void broadcast(void* data, std::size_t count, DataType type, int root, Stream) override;
  void send(const void* data, std::size_t count, DataType type, int peer, Stream) override {
    messages_.send(data, count, type, peer);
  }
  void recv(void* data, std::size_t count, DataType type, int peer, Stream) override {
    messages_.recv(data, count, type, peer);
  }
  std::unique_ptr<Request> isend(const void* data, std::size_t count, DataType type, int peer,
                                 Stream) override {
    return messages_.isend(data, count, type, peer);
  }
  std::unique_ptr<Request> irecv(void* data, std::size_t count, DataType type, int peer,
                                 Stream) override {
    return messages_.irecv(data, count, type, peer);
  }
  void barrier(Stream) override;
  std::shared_ptr<void> allocate(std::size_t bytes) override;
  void abort(const std::string& reason) noexcept override { peers_.control().abort(reason); }
  void abort_unless_told(const std::string& reason) noexcept override {
    peers_.control().abort_unless_told(reason);
  }
  std::optional<std::string> aborted() const override {
    return peers_.control().reason_if_aborted();
  }

 private:
  class AllReduce;
  MpiPeers::Running start(CallKind kind, std::size_t count, DataType type,
                          std::initializer_list<const void*> pointers, ReduceOp op = ReduceOp::Sum,
                          int root = 0);

  MpiPeers peers_;
  MpiMessages messages_;
  std::vector<unsigned char> scratch_;                        // Contributions received.
  const int exceptions_before_ = std::uncaught_exceptions();  // In flight when this was made.
};

}  // namespace ddprun::worker
