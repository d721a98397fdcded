// Transfers over MPI with a deadline, and the news that travel beside them: a rank gave up or left.
#include <algorithm>
#include <cstring>
#include <thread>

#include "worker/mpi/mpi_communicator.h"

namespace ddprun::worker {
namespace {

constexpr std::size_t piece_bytes_max = std::size_t{1} << 30;  // MPI counts in int.
constexpr int polls_before_yield = 200;  // A poll moves data itself; then others need the core.
constexpr auto yield_time = std::chrono::milliseconds{2};
constexpr auto pause = std::chrono::microseconds{50};

}  // namespace

void MpiCommunicator::post_send(Transfers& to, const void* data, std::size_t bytes, int peer,
                                Tag tag) {
  const std::lock_guard lock(runtime_.mutex());
  const auto* from = static_cast<const unsigned char*>(data);
  for (std::size_t at = 0; at < bytes; at += piece_bytes_max) {
    const int piece = static_cast<int>(std::min(piece_bytes_max, bytes - at));
    to.peers.push_back(peer);
    check_mpi(MPI_Isend(from + at, piece, MPI_BYTE, peer, tag, comm_,
                        &to.requests.emplace_back(MPI_REQUEST_NULL)),
              "sending to rank " + std::to_string(peer));
  }
}

void MpiCommunicator::post_receive(Transfers& to, void* data, std::size_t bytes, int peer,
                                   Tag tag) {
  const std::lock_guard lock(runtime_.mutex());
  auto* into = static_cast<unsigned char*>(data);
  for (std::size_t at = 0; at < bytes; at += piece_bytes_max) {
    const int piece = static_cast<int>(std::min(piece_bytes_max, bytes - at));
    to.peers.push_back(peer);
    check_mpi(MPI_Irecv(into + at, piece, MPI_BYTE, peer, tag, comm_,
                        &to.requests.emplace_back(MPI_REQUEST_NULL)),
              "receiving from rank " + std::to_string(peer));
  }
}

bool MpiCommunicator::advance(const Call& call, Transfers& transfers) {
  int done = 0, code = MPI_SUCCESS;
  {
    const std::lock_guard lock(runtime_.mutex());
    hear_control();
    code = MPI_Testall(static_cast<int>(transfers.requests.size()), transfers.requests.data(),
                       &done, MPI_STATUSES_IGNORE);
  }
  if (code != MPI_SUCCESS) fail(call, "a transfer over MPI failed, error " + std::to_string(code));
  return done != 0;
}

void MpiCommunicator::wait(const Running& running, Transfers& transfers) {
  Slowness slowness;
  for (int polls = 0; !advance(running.call, transfers); ++polls) {
    if (aborted_) throw_aborted(running.call);
    if (polls < polls_before_yield) continue;
    const auto now = Clock::now();
    if (slowness.since == Clock::time_point{}) slowness.since = now;
    check_peers(running, transfers, slowness);
    if (now - slowness.since < yield_time) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
    }
  }
  transfers.requests.clear();
  transfers.peers.clear();
}

void MpiCommunicator::check_peers(const Running& running, const Transfers& transfers,
                                  Slowness& slowness) {
  std::vector<bool> late(departed_.size());
  {
    const std::lock_guard lock(runtime_.mutex());
    for (std::size_t i = 0; i < transfers.requests.size(); ++i) {
      int done = 0;
      MPI_Request_get_status(transfers.requests[i], &done, MPI_STATUS_IGNORE);
      if (done == 0) late[static_cast<std::size_t>(transfers.peers[i])] = true;
    }
  }
  std::string names;
  for (std::size_t peer = 0; peer < late.size(); ++peer) {
    if (!late[peer]) continue;
    if (departed_[peer]) {
      fail(running.call, "rank " + std::to_string(peer) + " closed the communicator while rank " +
                             std::to_string(rank_) + " waited in " + to_string(running.call));
    }
    names += (names.empty() ? "rank " : ", rank ") + std::to_string(peer);
  }
  if (names.empty()) return;
  const std::string cause = names + " did not call it, or is stopped";
  const auto now = Clock::now();
  if (slow_waits_.is_due(slowness.since, slowness.told, now)) {
    slowness.told = true;
    slow_waits_.tell(rank_, slowness.since, to_string(running.call), cause);
  }
  if (now < running.deadline) return;
  fail(running.call, slow_waits_.timed_out() + " in " + to_string(running.call) + ", of rank " +
                         std::to_string(rank_) + ": " + cause);
}

void MpiCommunicator::listen() {
  MPI_Irecv(&heard_, sizeof heard_, MPI_BYTE, MPI_ANY_SOURCE, control_tag, comm_, &hearing_);
}

void MpiCommunicator::hear_control() {
  int done = 1;
  while (!aborted_ && hearing_ != MPI_REQUEST_NULL) {
    MPI_Status status;
    MPI_Test(&hearing_, &done, &status);
    if (done == 0) return;
    heard_.text[sizeof heard_.text - 1] = '\0';
    if (heard_.kind == ControlKind::Goodbye) {
      departed_[static_cast<std::size_t>(status.MPI_SOURCE)] = true;
      listen();
      continue;
    }
    set_reason(heard_.text);
    aborted_ = true;
  }
}

void MpiCommunicator::tell_all(ControlKind kind, const std::string& text) noexcept {
  // Small enough to be sent at once; kept, because nobody waits to see it done.
  auto* const said = new Control;
  said->kind = kind;
  text.copy(said->text, sizeof said->text - 1);
  for (const int peer : peers_) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(said, sizeof *said, MPI_BYTE, peer, control_tag, comm_, &request);
    int done = 0;
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done == 0) MPI_Request_free(&request);
  }
}

void MpiCommunicator::set_reason(const std::string& reason) {
  const std::lock_guard lock(reason_mutex_);
  if (reason_.empty()) reason_ = reason.empty() ? "aborted" : reason;
}

void MpiCommunicator::abort(const std::string& reason) noexcept {
  const std::lock_guard lock(runtime_.mutex());
  if (aborted_) return;
  try {
    set_reason(reason);
  } catch (...) {  // Without memory for the reason.
  }
  aborted_ = true;
  tell_all(ControlKind::Abort, reason);
}

}  // namespace ddprun::worker
