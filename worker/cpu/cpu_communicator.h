// The CPU communicator: direct exchange through shared memory within a host, TCP between hosts.
//
//   CpuCommunicator --> CpuAllReduce --+--> CpuPeers --> HostGroup, PeerStreams, PeerWatch
//     small collectives, allocate()    |      calls, steps, waits
//                   --> CpuMessages ---+
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "rendezvous/attempt_name.h"
#include "worker/communicator.h"
#include "worker/cpu/cpu_messages.h"
#include "worker/cpu/cpu_peers.h"
#include "worker/cpu/remote_slices.h"
#include "worker/peers/exchange.h"

namespace ddprun::worker {

// Connects to the other ranks, whose addresses come through `exchange` (not kept). Throws
// CommunicatorError.
std::unique_ptr<Communicator> connect_cpu_communicator(int rank, int world_size,
                                                       rendezvous::Epoch epoch,
                                                       AddressExchange& exchange,
                                                       const CpuCommunicatorOptions& options);

class CpuCommunicator final : public Communicator {
 public:
  CpuCommunicator(CpuPeers::Parts parts, const CpuCommunicatorOptions& options);

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::string description() const override { return peers_.description(); }
  bool is_cuda() const override { return false; }
  bool shares_memory() const override { return peers_.remote().empty(); }

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
  void abort(const std::string& reason) noexcept override { peers_.abort(reason); }
  void abort_unless_told(const std::string& reason) noexcept override {
    peers_.abort_unless_told(reason);
  }
  std::optional<std::string> aborted() const override { return peers_.aborted(); }

 private:
  // Tells the remote peers what is called, and nothing else.
  void post_calls(const CpuPeers::Running& running);
  // Memory that local peers map, too. Null if the machine refused.
  std::shared_ptr<void> allocate_shared(const CpuPeers::Running& running, std::size_t bytes,
                                        std::string& lack);

  CpuPeers peers_;
  const int rank_;
  const int world_size_;
  const std::size_t chunk_bytes_;
  RemoteSlices slices_;
  CpuMessages messages_;
};

}  // namespace ddprun::worker
