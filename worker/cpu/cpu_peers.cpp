// Waiting for peers, and what is counted alike on all of them: calls and steps.
#include "worker/cpu/cpu_peers.h"

#include <algorithm>
#include <cassert>

#include "worker/cpu/reduce.h"
#include "worker/progress_page.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ddprun::worker {
namespace {

// A wait spins this often before it sleeps: about 20 us, the price of a sleep and a wake-up. Not
// more, because the core may be needed by this process's own compute threads.
constexpr int spins_max = 1000;
constexpr int spins_between_looks = 64;  // ... at whether the peer needs this very processor.
// While frames are in flight a wait for local peers looks at the connections this often.
constexpr auto mixed_wait = std::chrono::microseconds{200};

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

CpuPeers::CpuPeers(Parts parts, const CpuCommunicatorOptions& options)
    : rank_(parts.rank),
      world_size_(parts.world_size),
      description_(std::move(parts.description)),
      timeout_(options.common.collective_timeout),
      slow_waits_(options.common),
      spins_(parts.spin ? spins_max : 0),
      host_(std::move(parts.host)),
      streams_(std::move(parts.streams)),
      watch_(std::move(parts.watched),
             [this] {
               if (host_) host_->ring();
               streams_->interrupt();
             }),
      guard_(rank_, world_size_, watch_) {
  assert(world_size_ <= tree_ranks_max);
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_) continue;
    (host_ && host_->contains(peer) ? local_ : remote_).push_back(peer);
  }
}

CpuPeers::Running CpuPeers::start(CallKind kind, std::size_t count, DataType type,
                                  std::initializer_list<const void*> pointers, ReduceOp op,
                                  int root) {
  return {guard_.begin(kind, count, type, pointers, op, root), steps_, now() + timeout_,
          CallGuard::Inside(guard_)};
}

void CpuPeers::finish(const Running& running, std::uint64_t steps) {
  assert(running.first_step == steps_);  // No other call has come between.
  steps_ = running.first_step + steps;
}

void CpuPeers::check_calls(const Running& running) {
  for (int peer : local_) {
    const Call theirs = host_->announced(peer, running.call.sequence);
    if (theirs != running.call) {
      guard_.fail(running.call, describe_mismatch(rank_, running.call, peer, theirs));
    }
  }
}

bool CpuPeers::move_streams(const Call& call) {
  // What a failed call has posted is still there, and its memory may be gone.
  guard_.throw_if_aborted(call);
  switch (streams_->progress()) {
    case PeerStreams::Progress::Moved:
      return true;
    case PeerStreams::Progress::Blocked:
      return false;
    case PeerStreams::Progress::Failed:
      break;
  }
  const StreamFault& fault = streams_->fault();
  if (!fault.lost) guard_.fail(call, fault.reason);
  // Its watch connection knows better whether it died, left or gave up.
  watch_.settle(fault.peer);
  if (watch_.departed(fault.peer)) fail_departed(call, fault.peer);
  // That one lives, as far as its watch connection tells, and hears of this by it.
  if (fault.unacknowledged) guard_.fail(call, unacknowledged_words(fault.peer, watch_.names()));
  guard_.fail(call, "rank " + std::to_string(fault.peer) + " is gone: " + fault.reason);
}

template <typename Done, typename Late>
RankSet CpuPeers::check(const Running& running, Via via, Done done, Late late) {
  guard_.throw_if_aborted(running.call);
  RankSet waits_for;
  int left = -1;
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_ || !late(peer)) continue;
    waits_for.insert(peer);
    // A connection tells by itself when it is at its end, after all that is still in it.
    if (via == Via::Memory && watch_.departed(peer)) left = peer;
    // Ahead of what we wait for lies something that this rank never asked for.
    if (const auto call = streams_->held(peer); call && via == Via::Streams) {
      guard_.fail(running.call, describe_mismatch(rank_, running.call, peer, *call));
    }
  }
  watch_.set_waiting_for(waits_for);
  const bool timed_out = now() >= running.deadline;
  // What a peer did before it left is seen once its goodbye is.
  if (done() || !(left >= 0 || timed_out)) return waits_for;
  if (left >= 0) fail_departed(running.call, left);
  const auto answers = watch_.ask();
  if (done()) return waits_for;
  guard_.fail(running.call, slow_waits_.timed_out() + " in " + to_string(running.call) +
                                ", of rank " + std::to_string(rank_) + ": " +
                                cause(waits_for, answers));
}

template <typename Done>
void CpuPeers::tell_slow(const Running& running, Clock::time_point since, const RankSet& waits_for,
                         Done done) {
  const auto answers = watch_.ask();
  if (done() || watch_.aborted()) return;
  slow_waits_.tell(rank_, now() - since, to_string(running.call),
                   cause(waits_for, answers, watch_.names()));
}

std::string CpuPeers::cause(const RankSet& waits_for,
                            const std::vector<std::optional<RankSet>>& answers,
                            const std::vector<std::string>& names) const {
  std::string text;
  for (const int peer : remote_) {
    if (!streams_->unacknowledged(peer)) continue;
    text += (text.empty() ? "" : "; ") + unacknowledged_words(peer, names);
  }
  // Who waits for what this rank has sent in vain is as far as it can get.
  if (text.empty()) text = to_string(find_blame(rank_, waits_for, answers), names);
  for (int peer = 0; peer < world_size_; ++peer) {
    const auto call = streams_->kept(peer);
    if (!waits_for.contains(peer) || !call) continue;
    text += "; rank " + std::to_string(peer) + " has sent " + to_string(*call) + ", which rank " +
            std::to_string(rank_) + " has not received";
  }
  return text;
}

std::string CpuPeers::unacknowledged_words(int peer, const std::vector<std::string>& names) const {
  return "what " + names_of({rank_}, names) + " sends to " + names_of({peer}, names) +
         " does not arrive, though that one's host answers otherwise: large packets are lost on "
         "the way (MTU: see `ddprun doctor -H HOSTS`), or a firewall has forgotten the connection";
}

void CpuPeers::fail_departed(const Call& call, int peer) {
  guard_.fail(call, "rank " + std::to_string(peer) + " closed the communicator while rank " +
                        std::to_string(rank_) + " waited in " + to_string(call));
}

template <typename Done, typename Late>
void CpuPeers::wait_until(const Running& running, Via via, Done done, Late late) {
  for (int spin = 0; spin < spins_; ++spin) {
    if (done()) return;
    if (via == Via::Memory && spin % spins_between_looks == 0 &&
        std::any_of(local_.begin(), local_.end(),
                    [&](int peer) { return late(peer) && host_->is_on_this_processor(peer); })) {
      break;
    }
    if (!streams_->idle()) {
      if (!move_streams(running.call)) spin += 20;  // System calls: about 20 times a pause.
    } else {
      relax();
    }
  }
  if (!done()) sleep_until_done(running, via, done, late);
  watch_.set_in_no_call();
}

template <typename Done, typename Late>
void CpuPeers::sleep_until_done(const Running& running, Via via, Done done, Late late) {
  const WaitForOthers told_of;
  const auto since = now();
  bool told = false;
  while (!done()) {
    const RankSet waits_for = check(running, via, done, late);
    if (slow_waits_.is_due(since, told, now())) {
      told = true;
      tell_slow(running, since, waits_for, done);
    }
    if (!streams_->idle() && move_streams(running.call)) continue;
    const auto until = awake_.next_look(slow_waits_.next_look(since, told, running.deadline));
    if (!streams_->idle()) {
      const auto soon = std::min(Clock::now() + mixed_wait, until);
      streams_->sleep_until(via == Via::Memory ? soon : until);
    } else if (host_) {
      host_->sleep_unless(
          [&] {
            if (done() || watch_.aborted()) return true;
            return std::any_of(local_.begin(), local_.end(),
                               [&](int peer) { return late(peer) && watch_.departed(peer); });
          },
          until);
    }
  }
}

void CpuPeers::wait_offered(const Running& running, std::uint64_t steps) {
  const auto late = [&](int peer) {
    return host_ && host_->contains(peer) && !host_->has_offered(peer, steps);
  };
  wait_until(
      running, Via::Memory, [&] { return std::none_of(local_.begin(), local_.end(), late); }, late);
}

void CpuPeers::wait_combined(const Running& running, std::uint64_t steps) {
  const auto late = [&](int peer) {
    return host_ && host_->contains(peer) && !host_->has_combined(peer, steps);
  };
  wait_until(
      running, Via::Memory, [&] { return std::none_of(local_.begin(), local_.end(), late); }, late);
}

void CpuPeers::wait_received(const Running& running, const std::vector<std::uint64_t>& tickets) {
  const auto late = [&](int peer) {
    return !streams_->received(peer, tickets[static_cast<std::size_t>(peer)]);
  };
  wait_until(
      running, Via::Streams, [&] { return std::none_of(remote_.begin(), remote_.end(), late); },
      late);
}

void CpuPeers::wait_streams_idle(const Running& running) {
  wait_until(
      running, Via::Streams, [&] { return streams_->idle(Traffic::Collectives); },
      [&](int peer) { return !streams_->idle(peer, Traffic::Collectives); });
}

CpuPeers::Running CpuPeers::resume(const Message& message) {
  return {message.call, steps_, now() + timeout_, CallGuard::Inside(guard_)};
}

void CpuPeers::wait(const Message& message) {
  wait_until(
      resume(message), message.sends ? Via::Sends : Via::Streams, [&] { return is_done(message); },
      [&](int peer) { return peer == message.peer && !is_done(message); });
}

bool CpuPeers::test(const Message& message) {
  const CallGuard::Inside inside(guard_);
  if (is_done(message)) return true;
  guard_.throw_if_aborted(message.call);
  while (!is_done(message) && move_streams(message.call)) {
  }
  return is_done(message);
}

}  // namespace ddprun::worker
