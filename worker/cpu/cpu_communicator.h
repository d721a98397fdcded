// The CPU communicator: direct exchange through shared memory within a host, TCP between hosts.
//
// all_reduce cuts the buffer into chunks and every chunk into one slice per rank. Rank r collects
// the contributions to its slice, combines them (reduce.h) and hands the result to
// all. As many bytes as a ring moves, in two hops instead of 2 (W - 1).
//
//           chunk 0               chunk 1          ...
//   | r0 | r1 | r2 | r3 | r0 | r1 | r2 | r3 |         slice rN is combined by rank N
//
// Memory from allocate() is read and written in place by the ranks of a host; other memory is
// copied through shared buffers small enough for the cache, the next chunk while peers combine.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "worker/communicator.h"
#include "worker/cpu/host_group.h"
#include "worker/cpu/reduce.h"
#include "worker/peers/exchange.h"
#include "worker/peers/slow_wait.h"
#include "worker/peers/streams.h"
#include "worker/peers/watch.h"

namespace ddprun::worker {

struct CpuCommunicatorOptions {
  CommunicatorOptions common;
  std::string host;  // Ranks share memory only if these are equal; "" = this machine's boot id.
  std::size_t chunk_bytes = 1u << 20;  // Equal on all ranks; a multiple of 64.
};

// Connects to the other ranks, whose addresses come through `exchange` (not kept). `epoch` is the
// attempt. Throws CommunicatorError.
std::unique_ptr<Communicator> connect_cpu_communicator(int rank, int world_size,
                                                       std::uint32_t epoch,
                                                       AddressExchange& exchange,
                                                       const CpuCommunicatorOptions& options);

class CpuCommunicator final : public Communicator {
 public:
  // What connecting yields. `host` is null when no rank shares memory with this one.
  struct Parts {
    int rank = 0;
    int world_size = 1;
    std::string description;
    std::shared_ptr<HostGroup> host;
    std::unique_ptr<PeerStreams> streams;
    std::vector<PeerWatch::Peer> watched;
    bool spin = true;
  };
  CpuCommunicator(Parts parts, const CpuCommunicatorOptions& options);

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::string description() const override { return description_; }
  bool is_cuda() const override { return false; }
  bool shares_memory() const override { return remote_.empty(); }

  void all_reduce(void* data, std::size_t count, DataType type, ReduceOp op, Stream) override;
  void all_gather(const void* send, void* recv, std::size_t count, DataType type, Stream) override;
  void reduce_scatter(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op,
                      Stream) override;
  void broadcast(void* data, std::size_t count, DataType type, int root, Stream) override;
  void send(const void* data, std::size_t count, DataType type, int peer, Stream) override;
  void recv(void* data, std::size_t count, DataType type, int peer, Stream) override;
  std::unique_ptr<Request> isend(const void* data, std::size_t count, DataType type, int peer,
                                 Stream) override;
  std::unique_ptr<Request> irecv(void* data, std::size_t count, DataType type, int peer,
                                 Stream) override;
  void barrier(Stream) override;
  std::shared_ptr<void> allocate(std::size_t bytes) override;
  void abort(const std::string& reason) noexcept override { watch_.abort(reason); }

  std::uint64_t stale_frames() const { return streams_->stale_frames(); }

 private:
  using Clock = std::chrono::steady_clock;
  class AllReduce;

  // One call in progress.
  struct Running {
    Call call;
    std::uint64_t first_step = 0;
    Clock::time_point deadline;
  };
  Running start(CallKind kind, std::size_t count, DataType type,
                std::initializer_list<const void*> pointers, ReduceOp op = ReduceOp::Sum,
                int root = 0);
  // A message under way.
  struct Message {
    Call call;
    int peer = 0;
    bool sends = false;
    std::uint64_t ticket = 0;
  };
  class MessageRequest;
  Message post_send(const void* data, std::size_t count, DataType type, int peer);
  Message post_recv(void* data, std::size_t count, DataType type, int peer);
  Call start_message(const char* name, const void* data, std::size_t count, DataType type, int peer,
                     std::vector<std::uint32_t>& sequences);
  bool is_done(const Message& message) const;
  void wait_message(const Message& message);
  bool test_message(const Message& message);
  void require(bool condition, const Call& call, const std::string& problem);

  enum class Via { Memory, Streams };
  // Blocks until `done`, which a peer brings about through shared memory or by frames; `late(peer)`
  // tells whether it is this peer that keeps us waiting.
  template <typename Done, typename Late>
  void wait(const Running& running, Via via, Done done, Late late);
  // Throws if the call cannot go on: aborted, out of time, or a late peer left. Returns for whom
  // it waits.
  template <typename Done, typename Late>
  RankSet check(const Running& running, Via via, Done done, Late late);
  // The second part of wait(), after spinning.
  template <typename Done, typename Late>
  void sleep_until_done(const Running& running, Via via, Done done, Late late);
  // Tells who keeps this rank, if they are still late once they have been asked.
  template <typename Done>
  void tell_slow(const Running& running, Clock::time_point since, RankSet waits_for, Done done);
  // Until the local peers offered (combined) that many steps.
  void wait_offered(const Running& running, std::uint64_t steps);
  void wait_combined(const Running& running, std::uint64_t steps);
  // Until the remote peers' frames with these tickets (index = rank) are here.
  void wait_received(const Running& running, const std::vector<std::uint64_t>& tickets);
  void wait_streams_idle(const Running& running);
  bool move_streams(const Running& running);  // True: something moved.
  // After the first wait_offered of a call: is it the same call everywhere on this host?
  void check_calls(const Running& running);
  [[noreturn]] void fail(const Call& call, const std::string& reason);
  [[noreturn]] void fail_departed(const Call& call, int peer);
  [[noreturn]] void throw_aborted(const Call& call);
  void finish(const Running& running, std::uint64_t steps);

  // Room for one remote rank's contribution to a slice of step `step`.
  unsigned char* remote_slice(int peer, std::uint64_t step);
  std::size_t slice_bytes_max() const;

  int rank_;
  int world_size_;
  std::string description_;
  std::size_t chunk_bytes_;
  std::chrono::milliseconds timeout_;
  SlowWaitTeller slow_waits_;
  int spins_;
  std::shared_ptr<HostGroup> host_;
  std::vector<int> local_;   // Peers on this host ...
  std::vector<int> remote_;  // ... and all others.
  std::unique_ptr<PeerStreams> streams_;
  std::vector<unsigned char> remote_slices_;  // Contributions received; see remote_slice().
  std::uint64_t steps_ = 0;                   // Finished so far.
  std::uint32_t calls_ = 0;
  std::vector<std::uint32_t> sent_;  // Messages per peer.
  std::vector<std::uint32_t> received_;
  PeerWatch watch_;  // Last: its thread uses the members above.
};

}  // namespace ddprun::worker
