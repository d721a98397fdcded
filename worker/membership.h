// For programs whose workers live on when the job loses one: the launcher gives them another rank,
// and they go on with what they have in memory.
//
//   Membership members;                                  // "I need not be killed."
//   for (;;) {
//     try {
//       const auto communicator = make_cpu_communicator(read_worker_env(), members.options());
//       const auto guard = members.guard(*communicator);
//       take_state(find_lead(*communicator, {state.step}).root, state);   // As root has it.
//       train(*communicator, state);
//       return 0;
//     } catch (const CommunicatorError&) {               // A peer is gone, or the attempt is over.
//       if (!members.next_rank()) throw;
//     }
//   }
//
// An attempt ends as ever, with the death of a worker or a node, or with nodes that come; ddprun
// then starts the next one with those that are parked in next_rank(), and with spares or new
// processes in the places of the dead. Its promise stays: never two attempts at once.
//
// Over NCCL the same, with make_nccl_communicator(), and with two rules more. The state changes
// only behind communicator->wait(stream), since a collective that was ended looks like one that
// succeeded. And CUDA graphs that have recorded calls are destroyed before the communicator
// (Communicator::replayed). The process keeps the GPU of its first rank: its local rank may change.
//
// A worker that a peer's end throws out must write no error file (declare_failure): the launcher
// blames whoever has one. examples/elastic_train.cpp is a whole program, elastic_ddp.cpp one with
// LibTorch.
//
// Threads: one thread calls; a thread of this object listens to the launcher and aborts the guarded
// communicator. The constructor and next_rank() change the environment: no other thread may read it
// meanwhile.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "worker/communicator.h"
#include "worker/state_lead.h"

namespace ddprun::worker {

struct MembershipOptions {
  // A worker that lost a peer waits so long for the launcher to say that the attempt is over. Not
  // given: as long as the launcher may take to know of a death (DDPRUN_WORD_LIMIT_MS: 5 s, and
  // twice its heartbeat time-out with several nodes), or 20 s where it does not say.
  std::optional<std::chrono::milliseconds> peer_word_limit = {};
};

class Membership {
 public:
  // In a process with a rank (after wait_for_rank()): tells the launcher that this worker is to be
  // asked to park where it would be killed. One in a process: the first takes the way to the
  // launcher out of the environment and closes it at its end; for a later one nobody listens.
  explicit Membership(MembershipOptions limits = {});
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Whether a launcher listens: ddprun, where the job may have another attempt. If not, all is as
  // without this object, and next_rank() is false at once.
  bool offered() const;

  // `base`, and that meeting the peers ends when the attempt does.
  CommunicatorOptions options(CommunicatorOptions base = {}) const;

  // While it lives, the communicator is aborted when the attempt is over, or has been before. One
  // at a time: the latest one counts, and may be assigned to one of another communicator.
  class [[nodiscard]] Guard {
   public:
    Guard(Guard&& other) noexcept
        : members_(std::exchange(other.members_, nullptr)), number_(other.number_) {}
    Guard& operator=(Guard&& other) noexcept {
      std::swap(members_, other.members_);
      std::swap(number_, other.number_);
      return *this;
    }
    ~Guard();

   private:
    friend class Membership;
    Guard(Membership* members, std::uint64_t number) : members_(members), number_(number) {}
    Membership* members_;
    std::uint64_t number_;  // Of all guards of `members_`.
  };
  Guard guard(Communicator& communicator);

  // An eventfd: what is written there, also by a signal handler, aborts the guarded communicator,
  // for a worker that has to leave its peers (they hang, and it is told to end). -1: not offered().
  int abort_fd() const;

  // Asked every 50 ms by who waits: whether it is to wait no more. A signal handler can set what
  // this looks at.
  using GiveUp = std::function<bool()>;

  // After a CommunicatorError: waits, for at most the limit, for the word that the attempt is over.
  // False: it has not come, so that this worker failed by itself, or the launcher is gone.
  bool attempt_is_over(const GiveUp& give_up = {});
  // What the launcher said of it.
  std::string why() const;

  // The same, then says that this process has left the attempt, and waits without a limit for a
  // rank. True: it is in the environment. False: also if the job is over. What this process holds
  // that the next attempt needs (a lock, the end of a file) must be given up before. A launcher
  // that has no rank for it any more sends SIGTERM, and gives it the time to save what it holds.
  // What the process dies of from then on goes to that attempt's error file (error_file.h).
  bool next_rank(const GiveUp& give_up = {});
  // next_rank() was false because nobody needs this process any more, and not for a failure.
  bool job_is_over() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Which rank's state all go on from, asked at the beginning of each attempt. Collective, over any
// communicator: positions are gathered on the host. Throws CommunicatorError.
StateLead find_lead(Communicator& communicator, const StatePosition& own);

}  // namespace ddprun::worker
