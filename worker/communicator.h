// The collectives of data-parallel training over raw memory: all ranks call the same functions in
// the same order, as with NCCL and MPI. Knows no LibTorch.
//
//   rank 0   rank 1  ...             CPU:  shared memory within a host, TCP between hosts
//     |        |                     CUDA: NCCL, in the module that loads at run time
//     +--------+---- all_reduce ...     MPI:  a module too, over the MPI of the cluster
//
// Threads: one thread at a time may be inside a collective, a message or a request of it; abort()
// may be called from any thread at any time. Errors: a dead or aborted peer ends every blocked and
// every later call with CommunicatorError on all ranks, never with a hang.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "worker/worker_env.h"

namespace ddprun::worker {

enum class DataType { Float32, Float64, Float16, BFloat16, Int32, Int64, UInt8 };
// Average: sum / world size; floating types only. On the CPU and over MPI 16-bit floats are added
// in float32 and rounded once, and Max and Min give NaN where any rank has it. NCCL may round to
// 16 bits each time that one more rank is added, and its Max and Min lose a NaN that not all have.
enum class ReduceOp { Sum, Average, Max, Min };

std::size_t bytes_of(DataType type);

// What failed, on which rank, because of which peer.
class CommunicatorError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Of allocate(): the device, or the host, has not that much left for this rank. The communicator
// can be used as before.
class OutOfMemory : public CommunicatorError {
 public:
  using CommunicatorError::CommunicatorError;
};

// A cudaStream_t for NCCL; ignored on the CPU. On CUDA a call returns once the work is queued on
// the stream; on the CPU it returns when the result is there.
using Stream = void*;

// A message under way, of isend() or irecv(). Must not outlive its communicator. One that is
// dropped before it is done goes on; its memory must stay in place as long as the communicator.
class Request {
 public:
  virtual ~Request() = default;
  Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // True once it is done: what was sent may be overwritten, what was to be received is there. Does
  // not block. Throws CommunicatorError.
  virtual bool test() = 0;
  // Returns once it is done; throws CommunicatorError, at the latest after collective_timeout.
  virtual void wait() = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::string description()
      const = 0;  // For logs: "cpu: 4 ranks on 2 hosts, shared memory + TCP".
  // True: pointers are device memory. Calls leave its device as the thread's current one: to go
  // back to another would make a context there.
  virtual bool is_cuda() const = 0;
  // The device of that memory, where it is known to be of one.
  virtual std::optional<int> cuda_device() const { return std::nullopt; }
  // All ranks are on this host and read each other's memory: no collective waits for a network.
  virtual bool shares_memory() const { return false; }

  // Combines `count` elements of all ranks in place. CPU: contributions are added in a fixed binary
  // tree over ranks, so the result has the same bits on every rank and for every placement of
  // ranks on hosts.
  virtual void all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                          Stream stream = nullptr) = 0;

  // recv holds world_size * count elements, rank r's at r * count.
  virtual void all_gather(const void* send, void* recv, std::size_t count, DataType type,
                          Stream stream = nullptr) = 0;

  // send holds world_size * count elements; recv gets this rank's `count` of the combined ones.
  virtual void reduce_scatter(const void* send, void* recv, std::size_t count, DataType type,
                              ReduceOp op, Stream stream = nullptr) = 0;

  virtual void broadcast(void* data, std::size_t count, DataType type, int root,
                         Stream stream = nullptr) = 0;

  // Point to point, matched in order per pair of ranks, count and type included; blocks on the CPU
  // until delivered to the peer's memory or its socket buffer. CPU and MPI: a message may be
  // received after a later collective; the irecv() of a large one is to be posted before, for what
  // is kept until then is bounded (docs/library.md).
  virtual void send(const void* data, std::size_t count, DataType type, int peer,
                    Stream stream = nullptr) = 0;
  virtual void recv(void* data, std::size_t count, DataType type, int peer,
                    Stream stream = nullptr) = 0;

  // The same without waiting. Messages move while this rank is inside a call of the communicator or
  // of a request, not in between. `data` must stay in place, what is sent unchanged, until the
  // request is done. CUDA: send() and recv() themselves, which only queue: the request is done at
  // once in the sense of the stream, and two ranks that send to each other must not both send
  // first.
  virtual std::unique_ptr<Request> isend(const void* data, std::size_t count, DataType type,
                                         int peer, Stream stream = nullptr);
  virtual std::unique_ptr<Request> irecv(void* data, std::size_t count, DataType type, int peer,
                                         Stream stream = nullptr);

  // Returns when every rank has called it (CUDA: after synchronizing the stream).
  virtual void barrier(Stream stream = nullptr) = 0;

  // CUDA: returns when all that was queued on the stream is done, and throws where it was ended
  // instead, because a peer is gone or somebody aborted: CUDA does not tell these apart, and what
  // an ended collective leaves is anything. So nothing that is to be kept, weights or a state that
  // was broadcast, may be made of a result before. After an error what was queued may write to its
  // memory until the stream is empty. On the CPU there is nothing to wait for.
  virtual void wait(Stream /*stream*/ = nullptr) {}

  // all_gather() of `bytes` of the host's memory, whatever memory the communicator is for: for the
  // little that ranks agree on before they train. Returns when it is there.
  virtual void all_gather_on_host(const void* send, void* recv, std::size_t bytes,
                                  Stream stream = nullptr);

  // Memory from which the collectives are fastest: a mapping shared with the ranks of this host on
  // the CPU (no copies), registered memory on CUDA. Collective: all ranks ask for the same sizes in
  // the same order. Zeroed, 64-byte aligned at least. Must be released before the communicator.
  virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;

  // CUDA: a graph that has recorded calls of this communicator was launched on the stream. They are
  // watched from now on as if they had been made now, the timeout included; a graph's launch is not
  // seen otherwise. What waits for the stream or the device cannot be recorded: barrier(), wait(),
  // all_gather_on_host() and allocate(). All graphs, executable ones too, must be destroyed before
  // the communicator, also after an error: NCCL waits for them. 10 s (or the collective timeout, if
  // that is less) after the error or the beginning of its end the communicator is left behind, with
  // the memory of allocate() that it may still use, and says so.
  virtual void replayed(Stream /*stream*/) {}

  // CUDA: how long streams stand for other ranks, by the device's clock. Between the two calls
  // `stream` is made to wait for collectives on another one; also while it is captured. By one
  // thread at a time, as collectives. No error: where CUDA refuses to measure nothing is measured.
  virtual void wait_begins(Stream /*stream*/) {}
  virtual void wait_ends(Stream /*stream*/) {}
  // The sum of such waits that the device is known to be past. Those of a graph (the one recorded
  // last) are known once the last replay is done: it stands for those that have not been counted.
  virtual std::chrono::nanoseconds waited() { return std::chrono::nanoseconds{0}; }

  // Ends all blocked and later calls on every rank with an error that carries `reason`.
  virtual void abort(const std::string& reason) noexcept = 0;
  // A failure of this rank whose exception is on its way to somebody who will declare it
  // (declare_failure.h). Where nobody does, `reason` is recorded and told instead: by this rank's
  // next call, by the end of this communicator, or some seconds later (not over MPI).
  virtual void abort_unless_told(const std::string& /*reason*/) noexcept {}
  // The reason of an abort, of whichever rank, as far as this one has heard of it; nothing while
  // calls can be made. From any thread, at the cost of a load: who computes for long between two
  // calls asks, and need not compute what nobody will use.
  virtual std::optional<std::string> aborted() const { return std::nullopt; }
  void throw_if_aborted() const;  // CommunicatorError with that reason.

  // Expires with this communicator. By its owner (std::owner_less) it is told from that of any
  // other one, be it at the same address later, or of another module.
  std::weak_ptr<const void> life() const { return life_; }

 private:
  std::shared_ptr<const void> life_ = std::make_shared<char>();
};

struct CommunicatorOptions {
  // To meet all peers through the store. Whoever has waited in vain makes no other communicator (of
  // the same group) in that attempt: its peers would look for it in another meeting.
  std::chrono::milliseconds connect_timeout{60'000};
  // Messages name it as what to change when that time was too short.
  std::string connect_timeout_name = "CommunicatorOptions::connect_timeout";
  // One collective; then abort, naming who was late. Messages name the option as above. While this
  // process is halted no time passes.
  std::chrono::milliseconds collective_timeout{600'000};
  std::string collective_timeout_name = "CommunicatorOptions::collective_timeout";
  // A wait for peers that takes so long is told of, once, through on_slow_wait: in which call, and
  // who keeps this rank. Called by the thread that waits (NCCL: by one of the communicator); must
  // not call the communicator. Empty: a line on standard error. NCCL: told there, too, when a
  // communicator is left behind (replayed()).
  std::chrono::milliseconds slow_wait{30'000};
  std::function<void(const std::string& text)> on_slow_wait;
  // A wait to meet them, which may last for hours, is told of there after this time and then each
  // minute: for whom.
  std::chrono::milliseconds slow_meeting{10'000};
  // Of some of the job's ranks: a name that these give, and no other group of the job. `rank` and
  // `world_size` of the environment are then those within the group, and the rest of it is as
  // read_worker_env(), or meet_workers(), has it. At most 64 letters, digits and "-_.,". Not over
  // MPI. "": all ranks of the job. Two groups with one name are refused only where job_rank is
  // known. Where no launcher hosts the store, the job's rank 0 does once it makes a communicator of
  // several ranks (or meet_workers() had to ask): until then the others wait.
  std::string group;
  bool shared_memory = true;  // False: TCP also within a host (for tests and comparison).
  // Where peers connect to this rank: an interface's name, an address of this host, or a network
  // (10.1.0.0/16). "" = GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, else the way to the store.
  std::string interface;
  // While it is readable nobody is waited for to be met: CommunicatorError. Must stay open until
  // the peers are met, and NCCL has started; is not closed (Membership::options). -1: none. Not
  // over MPI.
  int interrupt_fd = -1;
  // NCCL only. By default those of a host have its devices in the order of their local ranks; where
  // there are fewer, from the first one again.
  std::optional<int> cuda_device;
};

// The same, with waits of ten years at most: a clock has no room for milliseconds::max(), by which
// somebody says that there is no limit.
CommunicatorOptions bounded(CommunicatorOptions options);

// Meets the other ranks through the store at env.master_addr:env.master_port and connects to them.
// A world of one needs no store. At most 2,047 ranks, each connected with each other one: that
// takes two file descriptors a peer (ulimit -n), over NCCL one. Throws CommunicatorError.
std::unique_ptr<Communicator> make_cpu_communicator(const WorkerEnv& env,
                                                    const CommunicatorOptions& options = {});

// Opens libddprun_cuda.so from beside this program, then as above over NCCL. Throws
// CommunicatorError with what is missing when the module, a driver or a device is not there.
std::unique_ptr<Communicator> make_nccl_communicator(const WorkerEnv& env,
                                                     const CommunicatorOptions& options = {});

// Opens libddprun_mpi.so from beside this program, then as above over MPI: under mpirun (or srun
// with PMI), which must have started as many processes as the world has ranks. Uses no store.
// Throws CommunicatorError with what is missing. What MPI cannot do: docs/workers.md.
std::unique_ptr<Communicator> make_mpi_communicator(const WorkerEnv& env,
                                                    const CommunicatorOptions& options = {});

}  // namespace ddprun::worker
