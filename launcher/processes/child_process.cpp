// clone by hand, because posix_spawn can set neither a parent-death signal nor a semaphore's undo.
#include "launcher/processes/child_process.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "launcher/machine/find_program.h"
#include "launcher/processes/close_from.h"
#include "rendezvous/blocked_signals.h"
#include "rendezvous/contract/progress_page.h"
#include "rendezvous/contract/restart_memory_place.h"
#include "rendezvous/contract/spare_channel.h"
#include "rendezvous/contract/worker_key_place.h"
#include "rendezvous/unique_fd.h"

extern char** environ;  // NOLINT: of the C library.

namespace ddprun::launcher {

std::vector<std::string> own_environment() {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) all.emplace_back(*entry);
  return all;
}

namespace {

constexpr std::size_t child_stack_bytes = 64 * 1024;
constexpr int kernel_signals = 64;
constexpr int first_free_fd = 3;
constexpr int child_key_fd = rendezvous::worker_key_fd;
constexpr int child_spare_fd = rendezvous::spare_fd;
constexpr int child_memory_fd = rendezvous::restart_memory_fd;
constexpr int child_progress_fd = rendezvous::progress_page_fd;
static_assert(child_key_fd == first_free_fd && child_spare_fd == child_key_fd + 1 &&
              child_memory_fd == child_spare_fd + 1 && child_progress_fd == child_memory_fd + 1);

std::mutex spawned_mutex;
std::set<int> spawned_pids;  // Guarded by spawned_mutex.

// What the child reads; it shares our memory until execve, so it also answers here.
std::optional<rlimit> inherited_open_files;  // What it was before we raised it.

struct ChildStart {
  const char* path;
  char* const* argv;
  char* const* environment;
  int stdin_fd;
  int stdout_fd;
  int stderr_fd;
  int key_fd;
  int spare_fd;
  int memory_fd;
  int progress_fd;
  int parent_pid;
  int marks_id;
  const sembuf* marks;
  std::size_t mark_count;
  const unsigned long* cpu_mask;  // As the kernel takes it; null: no binding.
  std::size_t cpu_mask_bytes;
  const rlimit* open_files;    // Null: as ours.
  volatile int error_number;   // Set by the child when it could not execute `path`.
  volatile int binding_error;  // Set by the child when the kernel refused `cpu_mask`.
};

// The kernel's own struct sigaction: the C library's keeps state that belongs to the parent.
struct KernelSigaction {
  void (*handler)(int);
  unsigned long flags;
  void (*restorer)();
  unsigned long mask;
};

// Runs in the child, on its own stack but in the parent's memory (the parent is stopped until
// execve or _exit). So: system calls only, no allocation, nothing of the C library that has state,
// and no sanitizer instrumentation, whose bookkeeping would be the parent's.
#if defined(__clang__)
__attribute__((no_sanitize("address", "thread", "undefined")))
#else
__attribute__((no_sanitize_address, no_sanitize_thread, no_sanitize_undefined))
#endif
int run_child(void* argument) {
  auto* start = static_cast<ChildStart*>(argument);
  const KernelSigaction default_action{};  // SIG_DFL
  for (int signal = 1; signal <= kernel_signals; ++signal) {
    // What a batch script has its programs ignore, as a scheduler's warning, they go on ignoring.
    if (signal == SIGUSR1 || signal == SIGUSR2) {
      KernelSigaction now{};
      syscall(SYS_rt_sigaction, signal, nullptr, &now, sizeof(unsigned long));
      if (now.handler == SIG_IGN) continue;
    }
    syscall(SYS_rt_sigaction, signal, &default_action, nullptr, sizeof(unsigned long));
  }
  syscall(SYS_setsid);
  syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  // The parent may have died before the line above took effect.
  if (syscall(SYS_getppid) != start->parent_pid) syscall(SYS_exit_group, 1);

  if (start->mark_count > 0) {
    syscall(SYS_semtimedop, start->marks_id, start->marks, start->mark_count, nullptr);
  }
  if (start->stdin_fd >= 0) syscall(SYS_dup3, start->stdin_fd, 0, 0);
  if (start->stdout_fd >= 0) syscall(SYS_dup3, start->stdout_fd, 1, 0);
  if (start->stderr_fd >= 0) syscall(SYS_dup3, start->stderr_fd, 2, 0);
  if (start->key_fd >= 0) syscall(SYS_dup3, start->key_fd, child_key_fd, 0);
  if (start->spare_fd >= 0) syscall(SYS_dup3, start->spare_fd, child_spare_fd, 0);
  if (start->memory_fd >= 0) syscall(SYS_dup3, start->memory_fd, child_memory_fd, 0);
  if (start->progress_fd >= 0) syscall(SYS_dup3, start->progress_fd, child_progress_fd, 0);
  if (start->key_fd < 0) syscall(SYS_close, child_key_fd);
  if (start->spare_fd < 0) syscall(SYS_close, child_spare_fd);
  if (start->memory_fd < 0) syscall(SYS_close, child_memory_fd);
  if (start->progress_fd < 0) syscall(SYS_close, child_progress_fd);
  close_from(child_progress_fd + 1);
  if (start->cpu_mask != nullptr &&
      syscall(SYS_sched_setaffinity, 0, start->cpu_mask_bytes, start->cpu_mask) < 0) {
    start->binding_error = errno;
  }
  if (start->open_files != nullptr) {
    syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, start->open_files, nullptr);
  }

  const unsigned long no_signals = 0;
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &no_signals, nullptr, sizeof(no_signals));
  syscall(SYS_execve, start->path, start->argv, start->environment);
  start->error_number = errno;
  syscall(SYS_exit_group, 127);
  return 127;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const std::string& text : strings) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

std::vector<unsigned long> cpu_mask(const std::vector<int>& cpus) {
  constexpr std::size_t bits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask;
  for (const int cpu : cpus) {
    const auto bit = static_cast<std::size_t>(cpu);
    if (mask.size() <= bit / bits) mask.resize(bit / bits + 1);
    mask[bit / bits] |= 1UL << (bit % bits);
  }
  return mask;
}

std::optional<std::string> variable(const std::vector<std::string>& environment,
                                    const std::string& name) {
  std::optional<std::string> value;
  for (const std::string& entry : environment) {
    if (entry.compare(0, name.size() + 1, name + "=") == 0) value = entry.substr(name.size() + 1);
  }
  return value;
}

// Duplicates that dup3 onto 0 to 6 cannot disturb, for as long as the start takes.
class AboveStandard {
 public:
  // Throws std::system_error.
  void copy(const ChildSetup& setup, ChildStart& start) {
    start.stdin_fd = copy_of(setup.stdin_fd);
    start.stdout_fd = copy_of(setup.stdout_fd);
    start.stderr_fd = copy_of(setup.stderr_fd);
    start.key_fd = copy_of(setup.key_fd);
    start.spare_fd = copy_of(setup.spare_fd);
    start.memory_fd = copy_of(setup.memory_fd);
    start.progress_fd = copy_of(setup.progress_fd);
  }

 private:
  int copy_of(int fd) {
    if (fd < 0) return -1;
    copies_.push_back(rendezvous::duplicate(fd, child_progress_fd + 1));
    return copies_.back().get();
  }

  std::vector<rendezvous::UniqueFd> copies_;
};

// ThreadSanitizer takes any clone for a fork, also one that shares our memory, and all other
// threads for gone from then on. It does not know glibc's second name.
#if defined(__SANITIZE_THREAD__)
extern "C" int __clone(int (*run)(void*), void* stack, int flags, void* argument, ...);
constexpr auto clone_call = &__clone;
#else
constexpr auto clone_call = &::clone;
#endif

// One clone as posix_spawn does it, without copying page tables. posix_spawn itself cannot set a
// parent-death signal.
int clone_child(ChildStart& start, int& pidfd) {
  void* stack = ::mmap(nullptr, child_stack_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) return -1;

  const rendezvous::BlockedSignals no_handler_runs_in_the_child;
  void* const top = static_cast<char*>(stack) + child_stack_bytes;
  constexpr int flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
  int pid = clone_call(run_child, top, flags | CLONE_PIDFD, &start, &pidfd);
  if (pid < 0 && errno == EINVAL) {
    // qemu, where it interprets a program for another processor, forks instead and refuses this
    // flag (7.2). What the child answers in `start` does not reach us then: that it could not be
    // executed shows as its exit code, 127.
    pid = clone_call(run_child, top, flags, &start);
    // Nobody else reaps it, so the number is still its own.
    if (pid > 0) pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  }
  const int clone_error = errno;
  ::munmap(stack, child_stack_bytes);
  errno = clone_error;
  return pid;
}

}  // namespace

void raise_open_files_limit() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == files.rlim_max) return;
  const rlimit raised{files.rlim_max, files.rlim_max};
  if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) inherited_open_files = files;
}

bool is_spawned_child(int pid) {
  const std::lock_guard lock(spawned_mutex);
  return spawned_pids.count(pid) != 0;
}

void add_spawned_child(int pid) {
  const std::lock_guard lock(spawned_mutex);
  spawned_pids.insert(pid);
}

void remove_spawned_child(int pid) {
  const std::lock_guard lock(spawned_mutex);
  spawned_pids.erase(pid);
}

std::optional<ChildProcess> ChildProcess::spawn(const ChildSetup& setup, int& error_number) {
  error_number = EINVAL;
  if (setup.argv.empty()) return std::nullopt;
  const std::string path =
      find_program(setup.argv[0], search_path(variable(setup.environment, "PATH")), error_number);
  if (path.empty()) return std::nullopt;

  const auto argv = pointers(setup.argv);
  const auto environment = pointers(setup.environment);
  const auto mask = cpu_mask(setup.cpus);
  ChildStart start{};
  AboveStandard above;
  try {
    above.copy(setup, start);
  } catch (const std::system_error& error) {
    error_number = error.code().value();
    return std::nullopt;
  }
  start.path = path.c_str();
  start.argv = argv.data();
  start.environment = environment.data();
  start.parent_pid = ::getpid();
  start.marks_id = setup.death_marks.id;
  start.marks = setup.death_marks.operations.data();
  start.mark_count = setup.death_marks.operations.size();
  start.cpu_mask = mask.empty() ? nullptr : mask.data();
  start.cpu_mask_bytes = mask.size() * sizeof(unsigned long);
  start.open_files = inherited_open_files ? &*inherited_open_files : nullptr;
  int pidfd = -1;
  int pid = -1;
  {
    const std::lock_guard lock(spawned_mutex);  // Nobody may see the child before it is listed.
    pid = clone_child(start, pidfd);
    error_number = pid < 0 ? errno : start.error_number;
    if (pid > 0 && error_number == 0) spawned_pids.insert(pid);
  }
  if (pid < 0) return std::nullopt;
  rendezvous::UniqueFd owned(pidfd);
  if (error_number != 0) {
    while (::waitpid(pid, nullptr, __WALL) < 0 && errno == EINTR) {
    }
    return std::nullopt;
  }
  return ChildProcess(pid, std::move(owned), start.binding_error);
}

bool ChildProcess::has_ended() const {
  if (reaped_) return true;
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid_;
}

std::optional<ExitStatus> ChildProcess::reap() {
  siginfo_t info{};
  if (reaped_) return std::nullopt;
  {
    const std::lock_guard lock(spawned_mutex);
    if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG) != 0 ||
        info.si_pid != pid_) {
      return std::nullopt;
    }
    spawned_pids.erase(pid_);
  }
  reaped_ = true;
  ExitStatus status;
  if (info.si_code == CLD_EXITED) {
    status.exit_code = info.si_status;
  } else {
    status.signal = info.si_status;
    status.core_dumped = info.si_code == CLD_DUMPED;
  }
  return status;
}

void ChildProcess::send(int signal) const {
  if (!reaped_) syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0);
}

void ChildProcess::send_to_group(int signal) const {
  if (!reaped_) ::kill(-pid_, signal);
}

}  // namespace ddprun::launcher
