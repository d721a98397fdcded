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

#include <mpi.h>

#include <atomic>
#include <deque>
#include <exception>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "worker/communicator.h"
#include "worker/mpi/mpi_runtime.h"
#include "worker/peers/frame.h"
#include "worker/peers/slow_wait.h"

namespace ddprun::worker {

class MpiCommunicator final : public Communicator {
 public:
  // Throws CommunicatorError when MPI and `env` disagree about who this rank is.
  MpiCommunicator(const WorkerEnv& env, const CommunicatorOptions& options);
  ~MpiCommunicator() override;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::string description() const override { return description_; }
  bool is_cuda() const override { return false; }

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
  void abort(const std::string& reason) noexcept override;

 private:
  using Clock = std::chrono::steady_clock;
  enum Tag : int { control_tag = 1, call_tag, contribution_tag, result_tag, header_tag, data_tag };
  enum class ControlKind : int { Abort, Goodbye };
  struct Control {
    ControlKind kind = ControlKind::Abort;
    char text[1020] = "";
  };
  struct Running {
    Call call;
    Clock::time_point deadline;
  };
  // Transfers that have been started, and with whom.
  struct Transfers {
    std::vector<MPI_Request> requests;
    std::vector<int> peers;
  };
  struct Message;
  class MessageRequest;

  void meet(const WorkerEnv& env, Clock::time_point deadline);
  void listen();  // For the next control message.

  // Starting a call: checks it, tells all ranks, and compares with what they call.
  Running start(CallKind kind, std::size_t count, DataType type,
                std::initializer_list<const void*> pointers, ReduceOp op = ReduceOp::Sum,
                int root = 0);
  void announce(const Running& running);
  void require(bool condition, const Call& call, const std::string& problem);
  [[noreturn]] void fail(const Call& call, const std::string& reason);
  [[noreturn]] void throw_aborted(const Call& call);

  void post_send(Transfers& to, const void* data, std::size_t bytes, int peer, Tag tag);
  void post_receive(Transfers& to, void* data, std::size_t bytes, int peer, Tag tag);
  void wait(const Running& running, Transfers& transfers);
  bool advance(const Call& call, Transfers& transfers);  // True: all are done.
  struct Slowness {
    Clock::time_point since{};  // When this rank began to yield.
    bool told = false;
  };
  // Throws if the call cannot go on. Tells of it, once, when it takes long.
  void check_peers(const Running& running, const Transfers& transfers, Slowness& slowness);
  void hear_control();                                                // Under the lock.
  void tell_all(ControlKind kind, const std::string& text) noexcept;  // Under the lock.
  void set_reason(const std::string& reason);

  std::shared_ptr<Message> start_message(const char* name, const void* data, std::size_t count,
                                         DataType type, int peer, bool sends);
  bool test(Message& message);
  void wait(Message& message);
  void move_buffered();

  class AllReduce;
  std::vector<int> peers_;  // All other ranks.
  MpiRuntime& runtime_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_;
  int world_size_;
  std::string description_;
  std::chrono::milliseconds timeout_;
  SlowWaitTeller slow_waits_;
  std::uint32_t calls_ = 0;
  std::vector<std::uint32_t> sent_;
  std::vector<std::uint32_t> received_;
  std::vector<Call> theirs_;                       // What each rank calls.
  std::vector<unsigned char> scratch_;             // Contributions received.
  std::deque<std::shared_ptr<Message>> buffered_;  // Small messages that send() did not wait for.

  Control heard_;  // Where the next control message arrives.
  MPI_Request hearing_ = MPI_REQUEST_NULL;
  const int exceptions_before_ = std::uncaught_exceptions();  // In flight when this was made.
  std::vector<bool> departed_;
  std::atomic<bool> aborted_{false};
  mutable std::mutex reason_mutex_;
  std::string reason_;
};

}  // namespace ddprun::worker
