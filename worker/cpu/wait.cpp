// Waiting for peers: spinning for a moment, then asleep until a peer, a frame or an abort.
#include <algorithm>

#include "worker/cpu/cpu_communicator.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ddprun::worker {
namespace {

constexpr int spins_between_looks = 64;  // ... at whether the peer needs this very processor.
// While frames are in flight a wait for local peers looks at the connections this often.
constexpr auto mixed_wait = std::chrono::microseconds{200};
// How long the others may take to say whom they wait for, before a timeout is blamed on somebody.
constexpr auto answer_time = std::chrono::milliseconds{500};
// How long a lost data connection waits for the watch to say why: longer than the watch itself asks
// others about a peer that fell silent.
constexpr auto settle_time = std::chrono::milliseconds{1000};

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

bool CpuCommunicator::move_streams(const Running& running) {
  switch (streams_->progress()) {
    case PeerStreams::Progress::Moved:
      return true;
    case PeerStreams::Progress::Blocked:
      return false;
    case PeerStreams::Progress::Failed:
      break;
  }
  const StreamFault& fault = streams_->fault();
  if (!fault.lost) fail(running.call, fault.reason);
  // Its watch connection knows better whether it died, left or gave up.
  watch_.settle(fault.peer, Clock::now() + settle_time);
  if (watch_.departed(fault.peer)) fail_departed(running.call, fault.peer);
  fail(running.call, "rank " + std::to_string(fault.peer) + " is gone: " + fault.reason);
}

template <typename Done, typename Late>
RankSet CpuCommunicator::check(const Running& running, Via via, Done done, Late late) {
  if (watch_.aborted()) throw_aborted(running.call);
  RankSet waits_for = 0;
  int left = -1;
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_ || !late(peer)) continue;
    waits_for |= RankSet{1} << peer;
    // A connection tells by itself when it is at its end, after all that is still in it.
    if (via == Via::Memory && watch_.departed(peer)) left = peer;
    // Ahead of what we wait for lies something that this rank never asked for.
    if (const auto call = streams_->held(peer); call && via == Via::Streams) {
      fail(running.call, describe_mismatch(rank_, running.call, peer, *call));
    }
  }
  watch_.set_waiting_for(waits_for);
  const bool timed_out = Clock::now() >= running.deadline;
  // What a peer did before it left is seen once its goodbye is.
  if (done() || !(left >= 0 || timed_out)) return waits_for;
  if (left >= 0) fail_departed(running.call, left);
  const auto answers = watch_.ask(Clock::now() + answer_time);
  if (done()) return waits_for;
  fail(running.call, slow_waits_.timed_out() + " in " + to_string(running.call) + ", of rank " +
                         std::to_string(rank_) + ": " +
                         to_string(find_blame(rank_, waits_for, answers)));
}

template <typename Done>
void CpuCommunicator::tell_slow(const Running& running, Clock::time_point since, RankSet waits_for,
                                Done done) {
  const auto answers = watch_.ask(Clock::now() + answer_time);
  if (done() || watch_.aborted()) return;
  slow_waits_.tell(rank_, since, to_string(running.call),
                   to_string(find_blame(rank_, waits_for, answers), watch_.names()));
}

void CpuCommunicator::fail_departed(const Call& call, int peer) {
  fail(call, "rank " + std::to_string(peer) + " closed the communicator while rank " +
                 std::to_string(rank_) + " waited in " + to_string(call));
}

template <typename Done, typename Late>
void CpuCommunicator::wait(const Running& running, Via via, Done done, Late late) {
  for (int spin = 0; spin < spins_; ++spin) {
    if (done()) return;
    if (via == Via::Memory && spin % spins_between_looks == 0 &&
        std::any_of(local_.begin(), local_.end(),
                    [&](int peer) { return late(peer) && host_->is_on_this_processor(peer); })) {
      break;
    }
    if (!streams_->idle()) {
      if (!move_streams(running)) spin += 20;  // System calls: about 20 times a pause.
    } else {
      relax();
    }
  }
  if (!done()) sleep_until_done(running, via, done, late);
  watch_.set_waiting_for(0);
}

template <typename Done, typename Late>
void CpuCommunicator::sleep_until_done(const Running& running, Via via, Done done, Late late) {
  const auto since = Clock::now();
  bool told = false;
  while (!done()) {
    const RankSet waits_for = check(running, via, done, late);
    if (slow_waits_.is_due(since, told, Clock::now())) {
      told = true;
      tell_slow(running, since, waits_for, done);
    }
    if (!streams_->idle() && move_streams(running)) continue;
    const auto until = slow_waits_.next_look(since, told, running.deadline);
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

void CpuCommunicator::wait_offered(const Running& running, std::uint64_t steps) {
  const auto late = [&](int peer) {
    return host_ && host_->contains(peer) && !host_->has_offered(peer, steps);
  };
  wait(
      running, Via::Memory, [&] { return std::none_of(local_.begin(), local_.end(), late); }, late);
}

void CpuCommunicator::wait_combined(const Running& running, std::uint64_t steps) {
  const auto late = [&](int peer) {
    return host_ && host_->contains(peer) && !host_->has_combined(peer, steps);
  };
  wait(
      running, Via::Memory, [&] { return std::none_of(local_.begin(), local_.end(), late); }, late);
}

void CpuCommunicator::wait_received(const Running& running,
                                    const std::vector<std::uint64_t>& tickets) {
  const auto late = [&](int peer) {
    return !streams_->received(peer, tickets[static_cast<std::size_t>(peer)]);
  };
  wait(
      running, Via::Streams, [&] { return std::none_of(remote_.begin(), remote_.end(), late); },
      late);
}

void CpuCommunicator::wait_streams_idle(const Running& running) {
  wait(
      running, Via::Streams, [&] { return streams_->idle(Traffic::Collectives); },
      [&](int peer) { return !streams_->idle(peer, Traffic::Collectives); });
}

bool CpuCommunicator::is_done(const Message& message) const {
  return message.sends ? streams_->sent(message.peer, message.ticket)
                       : streams_->received(message.peer, message.ticket, Traffic::Messages);
}

void CpuCommunicator::wait_message(const Message& message) {
  const Running running{message.call, steps_, Clock::now() + timeout_};
  wait(
      running, Via::Streams, [&] { return is_done(message); },
      [&](int peer) { return peer == message.peer && !is_done(message); });
}

bool CpuCommunicator::test_message(const Message& message) {
  const Running running{message.call, steps_, Clock::now() + timeout_};
  if (is_done(message)) return true;
  if (watch_.aborted()) throw_aborted(message.call);
  while (!is_done(message) && move_streams(running)) {
  }
  return is_done(message);
}

}  // namespace ddprun::worker
