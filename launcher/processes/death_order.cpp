// A pair's semaphore: 1 while the lower of the two lives, plus 2 while the higher does; 0 with the
// pid of who was the last to end.
#include "launcher/processes/death_order.h"

#include <sys/ipc.h>

#include <algorithm>

namespace ddprun::launcher {
namespace {

int pairs_of(int workers) { return workers * (workers - 1) / 2; }

}  // namespace

DeathOrder::DeathOrder(int workers) : workers_(workers) {
  if (workers < 2 || workers > workers_max) return;
  id_ = ::semget(IPC_PRIVATE, pairs_of(workers), 0600);
}

DeathOrder::~DeathOrder() {
  if (id_ >= 0) ::semctl(id_, 0, IPC_RMID);
}

void DeathOrder::reset() {
  if (id_ < 0) return;
  // Also drops the undo of a process that could not be killed.
  std::vector<unsigned short> zeros(static_cast<std::size_t>(pairs_of(workers_)), 0);
  union {
    int value;
    semid_ds* buffer;
    unsigned short* array;
  } argument{};
  argument.array = zeros.data();
  ::semctl(id_, 0, SETALL, argument);
}

int DeathOrder::pair(int one, int other) const {
  const int low = std::min(one, other), high = std::max(one, other);
  return pairs_of(high) + low;
}

DeathMarks DeathOrder::marks(int worker) const {
  DeathMarks marks{id_, {}};
  if (id_ < 0) return marks;
  for (int other = 0; other < workers_; ++other) {
    if (other == worker) continue;
    const short bit = worker < other ? 1 : 2;
    marks.operations.push_back({static_cast<unsigned short>(pair(worker, other)), bit, SEM_UNDO});
  }
  return marks;
}

bool DeathOrder::began_before(int worker, int ended, int ended_pid) const {
  if (id_ < 0 || worker == ended) return false;
  const int number = pair(worker, ended);
  return ::semctl(id_, number, GETVAL) == 0 && ::semctl(id_, number, GETPID) == ended_pid;
}

}  // namespace ddprun::launcher
