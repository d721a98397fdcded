// A receive from anybody that is always posted, and sends that nobody waits for.
#include "worker/mpi/mpi_control.h"

#include <new>

namespace ddprun::worker {

MpiControl::MpiControl(MpiRuntime& runtime, MPI_Comm comm, int rank, int world_size)
    : runtime_(runtime), comm_(comm), rank_(rank), departed_(static_cast<std::size_t>(world_size)) {
  const auto lock = runtime_.lock();
  listen(lock);
  runtime_.at_end(this, [this](const MpiRuntime::Lock& held) {
    leave(held);
    record("MPI has ended, before this communicator was destroyed");  // For calls from now on.
  });
}

MpiControl::~MpiControl() {
  if (is_cut_off()) return;
  const auto lock = runtime_.lock();
  runtime_.forget(this);
  leave(lock);
}

void MpiControl::leave(const MpiRuntime::Lock& lock) noexcept {
  if (!aborted()) tell_all(lock, Kind::Goodbye, "");
  if (hearing_ == MPI_REQUEST_NULL) return;
  MPI_Cancel(&hearing_);
  MPI_Wait(&hearing_, MPI_STATUS_IGNORE);
}

bool MpiControl::is_cut_off() const noexcept {
  int finished = 0;
  return !owner_.is_this() || MPI_Finalized(&finished) != MPI_SUCCESS || finished != 0;
}

void MpiControl::listen(const MpiRuntime::Lock&) {
  MPI_Irecv(&heard_, sizeof heard_, MPI_BYTE, MPI_ANY_SOURCE, control_tag, comm_, &hearing_);
}

void MpiControl::hear(const MpiRuntime::Lock& lock) {
  while (!aborted() && hearing_ != MPI_REQUEST_NULL) {
    int done = 0;
    MPI_Status status;
    MPI_Test(&hearing_, &done, &status);
    if (done == 0) return;
    heard_.text[sizeof heard_.text - 1] = '\0';
    if (heard_.kind == Kind::Goodbye) {
      departed_[static_cast<std::size_t>(status.MPI_SOURCE)] = true;
      listen(lock);
      continue;
    }
    record(heard_.text);  // Not told on: the rank that aborted has told all.
  }
}

void MpiControl::tell_all(const MpiRuntime::Lock&, Kind kind, const std::string& text) noexcept {
  // Small enough to be sent at once; kept, because nobody waits to see it done.
  auto* const said = new (std::nothrow) Message;
  if (said == nullptr) return;
  said->kind = kind;
  text.copy(said->text, sizeof said->text - 1);
  for (int peer = 0; peer < static_cast<int>(departed_.size()); ++peer) {
    if (peer == rank_) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(said, sizeof *said, MPI_BYTE, peer, control_tag, comm_, &request);
    int done = 0;
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done == 0) MPI_Request_free(&request);
  }
}

void MpiControl::abort(const std::string& reason) noexcept {
  if (is_cut_off()) {
    record(reason);
    return;
  }
  const auto lock = runtime_.lock();
  if (record(reason)) tell_all(lock, Kind::Abort, reason);
}

}  // namespace ddprun::worker
