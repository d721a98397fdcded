// Asked from outside, so that a program need not know of us; what the kernel refuses to tell (a
// hardened machine keeps system calls of other processes to itself) is left out.
#include "launcher/status/rank_stacks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "launcher/processes/child_sessions.h"
#include "launcher/processes/process_file.h"
#include "rendezvous/control/visible_text.h"
#include "rendezvous/time_text.h"
#include "rendezvous/unique_fd.h"

extern char** environ;

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Each has a processor's time for itself, and stops the process that it looks into.
constexpr std::size_t py_spies_max = 4;
constexpr std::size_t threads_shown_max =
    12;  // Of a process; the first are its own, later ones pools'.
constexpr std::size_t py_spy_bytes_max = 1 << 20;

std::string content(const std::string& path) {
  std::string text = read_process_file(path);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\0')) text.pop_back();
  return text;
}

// Calls in which programs stand; of others the number is told.
const char* call_name(long number) {
  static const std::pair<long, const char*> names[] = {
      {SYS_read, "read"},
      {SYS_write, "write"},
      {SYS_futex, "futex"},
      {SYS_ppoll, "ppoll"},
      {SYS_pselect6, "pselect6"},
      {SYS_epoll_pwait, "epoll_pwait"},
      {SYS_recvfrom, "recvfrom"},
      {SYS_recvmsg, "recvmsg"},
      {SYS_sendto, "sendto"},
      {SYS_sendmsg, "sendmsg"},
      {SYS_accept, "accept"},
      {SYS_accept4, "accept4"},
      {SYS_connect, "connect"},
      {SYS_wait4, "wait4"},
      {SYS_waitid, "waitid"},
      {SYS_nanosleep, "nanosleep"},
      {SYS_clock_nanosleep, "clock_nanosleep"},
      {SYS_openat, "openat"},
      {SYS_fsync, "fsync"},
      {SYS_fdatasync, "fdatasync"},
      {SYS_pread64, "pread"},
      {SYS_pwrite64, "pwrite"},
      {SYS_ioctl, "ioctl"},
      {SYS_flock, "flock"},
      {SYS_sched_yield, "sched_yield"},
      {SYS_rt_sigtimedwait, "sigtimedwait"},
#ifdef SYS_poll
      {SYS_poll, "poll"},
      {SYS_select, "select"},
      {SYS_epoll_wait, "epoll_wait"},
      {SYS_pause, "pause"},
#endif
  };
  for (const auto& [value, name] : names) {
    if (value == number) return name;
  }
  return nullptr;
}

// "in futex (futex_wait_queue)", "runs", "in system call 999".
std::string standing(const std::string& task) {
  const std::string call = content(task + "/syscall");
  const std::string channel = content(task + "/wchan");
  const std::string where = channel.empty() || channel == "0" ? "" : " (" + channel + ")";
  if (call.rfind("running", 0) == 0) return "runs";
  if (call.empty()) return where.empty() ? "the kernel does not say where" : "waits" + where;
  const long number = std::strtol(call.c_str(), nullptr, 10);
  if (number < 0) return "waits" + where;
  const char* const name = call_name(number);
  return name != nullptr ? fmt::format("in {}{}", name, where)
                         : fmt::format("in system call {}{}", number, where);
}

void add_threads(int pid, std::vector<std::string>& lines) {
  const std::vector<int> threads = read_threads(pid);
  for (std::size_t i = 0; i < threads.size() && i < threads_shown_max; ++i) {
    const std::string task = fmt::format("/proc/{}/task/{}", pid, threads[i]);
    lines.push_back(fmt::format("    thread {} {}: {}", threads[i],
                                rendezvous::visible_text(content(task + "/comm")), standing(task)));
  }
  if (threads.size() > threads_shown_max) {
    lines.push_back(fmt::format("    and {} threads more", threads.size() - threads_shown_max));
  }
}

// py-spy at work on a process.
struct PySpy {
  std::size_t place = 0;  // Of the process in the question.
  pid_t pid = -1;
  rendezvous::UniqueFd out;
  std::string text;
};

// False: it is not there, or cannot be started.
bool start_py_spy(PySpy& spy, int of) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  spy.out.reset(ends[0]);
  const rendezvous::UniqueFd in(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, in.get(), 1);
  ::posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  std::string words[] = {"py-spy", "dump", "--pid", std::to_string(of)};
  char* const argv[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(),
                        nullptr};
  const int failed = ::posix_spawnp(&spy.pid, argv[0], &actions, nullptr, argv, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  return failed == 0;
}

// False: it has said all, or too much.
bool read_more(PySpy& spy) {
  char piece[4096];
  const ssize_t count = ::read(spy.out.get(), piece, sizeof piece);
  if (count <= 0 || spy.text.size() > py_spy_bytes_max) return false;
  spy.text.append(piece, static_cast<std::size_t>(count));
  return true;
}

void end_py_spy(const PySpy& spy) {
  ::kill(spy.pid, SIGKILL);  // Ended already, unless it took too long.
  int status = 0;
  while (::waitpid(spy.pid, &status, 0) < 0 && errno == EINTR) {
  }
}

// Waits until one of them has written or ended. Nothing: none has until then.
std::vector<pollfd> wait_for_any(const std::vector<PySpy>& spies, steady_clock::time_point until) {
  std::vector<pollfd> waited;
  for (const PySpy& spy : spies) waited.push_back({spy.out.get(), POLLIN, 0});
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(until - steady_clock::now());
    if (left.count() <= 0) return {};
    const int count = ::poll(waited.data(), waited.size(), static_cast<int>(left.count()));
    if (count > 0) return waited;
    if (count == 0 || errno != EINTR) return {};
  }
}

// A process has one tracer at most: where two ask at the same time, the report of a stall and
// another node that stalls, one of them would be told less. A condition and no std::timed_mutex,
// whose deadline ThreadSanitizer of g++ 12 does not see.
class PySpyTurn {
 public:
  explicit PySpyTurn(steady_clock::time_point until) : all_(all()) {
    std::unique_lock lock(all_.mutex);
    has_come_ = all_.free_again.wait_until(lock, until, [&] { return !all_.taken; });
    if (has_come_) all_.taken = true;
  }
  ~PySpyTurn() {
    if (!has_come_) return;
    const std::lock_guard lock(all_.mutex);
    all_.taken = false;
    all_.free_again.notify_one();
  }
  PySpyTurn(const PySpyTurn&) = delete;
  PySpyTurn& operator=(const PySpyTurn&) = delete;
  bool has_come() const { return has_come_; }

 private:
  struct All {
    std::mutex mutex;
    std::condition_variable free_again;
    bool taken = false;
  };
  // Never destroyed: a thread that nobody joins may wait in it while the program ends.
  static All& all() {
    static All& all = *new All;
    return all;
  }

  All& all_;
  bool has_come_ = false;
};

// What py-spy writes of each of these processes, "" where it can tell nothing; nothing of those
// that it has not come to the end of within the limit.
std::vector<std::optional<std::string>> python_stacks(const std::vector<int>& pids,
                                                      milliseconds limit) {
  const auto until = steady_clock::now() + limit;
  std::vector<std::optional<std::string>> stacks(pids.size());
  std::vector<PySpy> at_work;
  for (std::size_t next = 0;;) {
    for (; next < pids.size() && at_work.size() < py_spies_max; ++next) {
      PySpy spy{.place = next, .pid = -1, .out = {}, .text = {}};
      if (start_py_spy(spy, pids[next])) {
        at_work.push_back(std::move(spy));
      } else {
        stacks[next] = "";
      }
    }
    if (at_work.empty()) return stacks;
    const std::vector<pollfd> waited = wait_for_any(at_work, until);
    if (waited.empty()) break;
    for (std::size_t i = waited.size(); i-- > 0;) {
      if (waited[i].revents == 0 || read_more(at_work[i])) continue;
      end_py_spy(at_work[i]);
      stacks[at_work[i].place] = std::move(at_work[i].text);
      at_work.erase(at_work.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  for (const PySpy& spy : at_work) end_py_spy(spy);
  return stacks;
}

void add_text(const std::string& text, std::vector<std::string>& lines) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back("    " + rendezvous::visible_text(text.substr(at, end - at)));
    at = end + 1;
  }
}

// A process of a worker, and where it is.
struct SeenProcess {
  std::size_t worker = 0;
  bool is_worker = false;  // Itself, and not what it has started.
  ProcessRow row;
  std::vector<std::string> lines;
};

// As the kernel tells it, which takes no time: all at one moment.
std::vector<SeenProcess> see_processes(const std::vector<AskedWorker>& workers) {
  std::vector<SeenProcess> seen;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    for (ProcessRow& row : read_with_descendants({workers[i].pid})) {
      SeenProcess& each = seen.emplace_back();
      each.worker = i;
      each.is_worker = row.pid == workers[i].pid;
      add_threads(row.pid, each.lines);
      each.row = std::move(row);
    }
  }
  return seen;
}

// A worker's own stack says more than those of its data loaders, should the time not do for all.
void ask_py_spy(std::vector<SeenProcess>& seen, milliseconds limit) {
  std::vector<SeenProcess*> python;
  for (SeenProcess& each : seen) {
    if (each.row.name.rfind("python", 0) == 0) python.push_back(&each);
  }
  std::stable_partition(python.begin(), python.end(),
                        [](const SeenProcess* each) { return each->is_worker; });
  std::vector<int> pids;
  for (const SeenProcess* each : python) pids.push_back(each->row.pid);
  if (pids.empty()) return;
  const auto until = steady_clock::now() + limit;
  const PySpyTurn turn(until);
  const auto left = std::chrono::duration_cast<milliseconds>(until - steady_clock::now());
  const auto stacks = turn.has_come() ? python_stacks(pids, left)
                                      : std::vector<std::optional<std::string>>(pids.size());
  for (std::size_t i = 0; i < python.size(); ++i) {
    std::vector<std::string>& lines = python[i]->lines;
    if (!stacks[i]) {
      lines.insert(lines.begin(), fmt::format("    py-spy did not come to its end within {}",
                                              rendezvous::time_text(limit)));
    } else if (!stacks[i]->empty()) {
      lines.clear();
      add_text(*stacks[i], lines);
    }
  }
}

}  // namespace

std::vector<std::vector<std::string>> worker_stack_lines(const std::vector<AskedWorker>& workers,
                                                         milliseconds limit) {
  std::vector<SeenProcess> seen = see_processes(workers);
  ask_py_spy(seen, limit);
  std::vector<std::vector<std::string>> all(workers.size());
  for (const SeenProcess& process : seen) {
    std::vector<std::string>& lines = all[process.worker];
    if (!process.is_worker) {
      lines.push_back(fmt::format("  below it: {} (pid {})",
                                  rendezvous::visible_text(process.row.name), process.row.pid));
    }
    if (process.row.state == 'T') lines.push_back("    halted by a signal (state T)");
    if (process.is_worker) add_text(workers[process.worker].own_stack, lines);
    lines.insert(lines.end(), process.lines.begin(), process.lines.end());
  }
  return all;
}

bool waits_in_kernel(int pid) {
  for (const ProcessRow& row : read_with_descendants({pid})) {
    for (const int thread : read_threads(row.pid)) {
      if (read_process(thread).state == 'D') return true;
    }
  }
  return false;
}

// py-spy writes "Process 77: python3 ...", and for each thread "Thread 77 (idle): "MainThread""
// with its frames behind it, the innermost first. The name is there only where Python's threading
// is.
bool is_in_collective(const std::vector<std::string>& lines) {
  constexpr std::string_view process = "    Process ", thread = "    Thread ";
  std::string pid;
  bool main_thread = false;
  for (const std::string& line : lines) {
    if (line.rfind(process, 0) == 0)
      pid = line.substr(process.size(), line.find(':') - process.size());
    if (line.rfind(thread, 0) == 0) {
      main_thread = line.find("\"MainThread\"") != line.npos ||
                    (!pid.empty() && line.compare(thread.size(), pid.size() + 1, pid + ' ') == 0);
    }
    if (main_thread && line.find("(torch/distributed/") != line.npos) return true;
  }
  return false;
}

}  // namespace ddprun::launcher
