// The ranks of a CPU communicator, connected, as one of them sees them: those of its host through
// shared memory (host_group.h), all others through TCP (streams.h), beside both the watch that
// tells who died, left or gave up.
//
// Whatever a call moves, it posts or offers it here and then waits until the peers are as far:
// spinning for a moment, then asleep until a peer, a frame or an abort. Each wait ends at the
// call's deadline (awake_time.h), with an error that names who was late.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/communicator.h"
#include "worker/cpu/host_group.h"
#include "worker/peers/awake_time.h"
#include "worker/peers/call_guard.h"
#include "worker/peers/slow_wait.h"
#include "worker/peers/streams.h"
#include "worker/peers/watch.h"

namespace ddprun::worker {

struct CpuCommunicatorOptions {
  CommunicatorOptions common;
  std::string host;  // Ranks share memory only if these are equal; "" = this machine's boot id.
  std::size_t chunk_bytes = 1u << 20;    // Equal on all ranks; a multiple of 64.
  bool encrypt = false;                  // All ranks or none: what goes over TCP is sealed.
  std::shared_ptr<const WorkerKey> key;  // That ranks prove; null: the launcher's (job_key()).
};

class CpuPeers {
 public:
  using Clock = std::chrono::steady_clock;

  // What connecting yields (cpu_connect.h). `host` is null when no rank shares memory with this
  // one.
  struct Parts {
    int rank = 0;
    int world_size = 1;
    std::string description;
    std::shared_ptr<HostGroup> host;
    std::unique_ptr<PeerStreams> streams;
    std::vector<PeerWatch::Peer> watched;
    bool spin = true;
  };
  CpuPeers(Parts parts, const CpuCommunicatorOptions& options);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const std::string& description() const { return description_; }
  const std::vector<int>& local() const { return local_; }    // Peers of this host ...
  const std::vector<int>& remote() const { return remote_; }  // ... and all others.
  const std::shared_ptr<HostGroup>& host() const { return host_; }
  PeerStreams& streams() { return *streams_; }
  CallGuard& guard() { return guard_; }
  void abort(const std::string& reason) noexcept { watch_.abort(reason); }
  void abort_unless_told(const std::string& reason) noexcept { watch_.abort_unless_told(reason); }
  std::optional<std::string> aborted() const { return watch_.reason_if_aborted(); }

  // One call in progress. Steps are counted over all collectives, alike on all ranks.
  struct Running {
    Call call;
    std::uint64_t first_step = 0;
    Clock::time_point deadline;  // Of awake_.
    CallGuard::Inside inside;
  };
  // Begins a collective; see CallGuard::begin(). Its steps are finish()ed once nothing of it is
  // left to do, or never: a call that throws leaves the group aborted.
  Running start(CallKind kind, std::size_t count, DataType type,
                std::initializer_list<const void*> pointers, ReduceOp op = ReduceOp::Sum,
                int root = 0);
  void finish(const Running& running, std::uint64_t steps);
  // After the first wait_offered() of a call: is it the same call everywhere on this host?
  void check_calls(const Running& running);

  // Until the local peers offered (combined) that many steps.
  void wait_offered(const Running& running, std::uint64_t steps);
  void wait_combined(const Running& running, std::uint64_t steps);
  // Until the remote peers' frames with these tickets (index = rank) are here.
  void wait_received(const Running& running, const std::vector<std::uint64_t>& tickets);
  // Until nothing that a collective posted is under way.
  void wait_streams_idle(const Running& running);

  // A message that was posted to the streams.
  struct Message {
    Call call;
    int peer = 0;
    bool sends = false;
    std::uint64_t ticket = 0;
  };
  bool is_done(const Message& message) const {
    return message.sends ? streams_->sent(message.peer, message.ticket)
                         : streams_->received(message.peer, message.ticket, Traffic::Messages);
  }
  void wait(const Message& message);
  bool test(const Message& message);  // Moves what can be moved now; true: done.

 private:
  // Sends: by taking this rank's frames. What the peer itself sends meanwhile, be it the next
  // collective, does not hinder that: it receives a message within any call, if it has posted it.
  enum class Via { Memory, Streams, Sends };
  // Blocks until `done`, which a peer brings about through shared memory or by frames; `late(peer)`
  // tells whether it is this peer that keeps us waiting.
  template <typename Done, typename Late>
  void wait_until(const Running& running, Via via, Done done, Late late);
  // Throws if the call cannot go on: aborted, out of time, or a late peer left. Returns for whom
  // it waits.
  template <typename Done, typename Late>
  RankSet check(const Running& running, Via via, Done done, Late late);
  // The second part of wait_until(), after spinning.
  template <typename Done, typename Late>
  void sleep_until_done(const Running& running, Via via, Done done, Late late);
  // Tells who keeps this rank, if they are still late once they have been asked.
  template <typename Done>
  void tell_slow(const Running& running, Clock::time_point since, const RankSet& waits_for,
                 Done done);
  // Who keeps this rank, and what of theirs it has not received: it may be that they wait for.
  std::string cause(const RankSet& waits_for, const std::vector<std::optional<RankSet>>& answers,
                    const std::vector<std::string>& names = {}) const;
  // Of a peer whose host acknowledges nothing of it.
  std::string unacknowledged_words(int peer, const std::vector<std::string>& names) const;
  bool move_streams(const Call& call);  // True: something moved.
  [[noreturn]] void fail_departed(const Call& call, int peer);
  Running resume(const Message& message);
  Clock::time_point now() { return awake_.at(Clock::now()); }

  int rank_;
  int world_size_;
  std::string description_;
  std::chrono::milliseconds timeout_;
  AwakeTime awake_;
  SlowWaitTeller slow_waits_;
  int spins_;
  std::shared_ptr<HostGroup> host_;
  std::vector<int> local_;
  std::vector<int> remote_;
  std::unique_ptr<PeerStreams> streams_;
  std::uint64_t steps_ = 0;  // Finished so far.
  PeerWatch watch_;          // After what its thread uses: host_ and streams_.
  CallGuard guard_;
};

}  // namespace ddprun::worker
