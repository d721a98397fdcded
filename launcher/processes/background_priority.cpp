// Means that cannot be taken back are left alone: a worker that stayed behind the others would hold
// up the whole job.
#include "launcher/processes/background_priority.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "launcher/processes/child_sessions.h"

namespace ddprun::launcher {
namespace {

// A tenth of a core against a worker that wants all of it. Less would not spare the job anything: a
// spare costs it the same work in any case, and would be ready later.
constexpr int background_nice = 10;
constexpr int of_process = 1;        // IOPRIO_WHO_PROCESS, which means a thread.
constexpr int idle_class = 3 << 13;  // IOPRIO_CLASS_IDLE.

// An errno, or 0.
int set_group_nice(int pid, int nice) {
  const int fd =
      ::open(("/proc/" + std::to_string(pid) + "/autogroup").c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  const std::string text = std::to_string(nice);
  const int error = ::write(fd, text.data(), text.size()) < 0 ? errno : 0;
  ::close(fd);
  return error;
}

int own_nice() { return ::getpriority(PRIO_PROCESS, 0); }

// Who may go below the own value may also come back to it.
bool may_take_nice_back(int pid) {
  const int own = own_nice();
  if (::setpriority(PRIO_PROCESS, static_cast<id_t>(pid), std::max(own - 1, -20)) != 0) {
    return false;
  }
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(pid), own);
  return true;
}

}  // namespace

void lower_priority(int pid) {
  set_group_nice(pid, background_nice);
  if (may_take_nice_back(pid)) ::setpriority(PRIO_PROCESS, static_cast<id_t>(pid), background_nice);
  ::syscall(SYS_ioprio_set, of_process, pid, idle_class);
}

bool restore_priority(int pid) {
  const int nice = own_nice();
  const long disk_class = ::syscall(SYS_ioprio_get, of_process, 0);
  for (const ProcessRow& row : read_with_descendants({pid})) {
    for (const int thread : read_threads(row.pid)) {
      if (::getpriority(PRIO_PROCESS, static_cast<id_t>(thread)) == background_nice) {
        ::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), nice);
      }
      ::syscall(SYS_ioprio_set, of_process, thread, disk_class);
    }
  }
  // The group of the launcher's own session has the nice that workers would have: a new session
  // begins with 0.
  return set_group_nice(pid, 0) != EAGAIN;
}

}  // namespace ddprun::launcher
