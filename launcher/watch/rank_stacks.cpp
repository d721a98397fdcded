// Asked from outside, so that a program need not know of us; what the kernel refuses to tell (a
// hardened machine keeps system calls of other processes to itself) is left out.
#include "launcher/watch/rank_stacks.h"

#include <dirent.h>
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
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "launcher/processes/child_sessions.h"
#include "launcher/processes/process_file.h"
#include "rendezvous/control/visible_text.h"
#include "rendezvous/unique_fd.h"

extern char** environ;

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds py_spy_limit{10'000};
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

std::vector<int> threads_of(int pid) {
  std::vector<int> threads;
  const std::string path = fmt::format("/proc/{}/task", pid);
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), ::closedir);
  if (!folder) return threads;
  while (const dirent* entry = ::readdir(folder.get())) {
    if (const int thread = std::atoi(entry->d_name); thread > 0) threads.push_back(thread);
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

void add_threads(int pid, std::vector<std::string>& lines) {
  const std::vector<int> threads = threads_of(pid);
  for (std::size_t i = 0; i < threads.size() && i < threads_shown_max; ++i) {
    const std::string task = fmt::format("/proc/{}/task/{}", pid, threads[i]);
    lines.push_back(fmt::format("    thread {} {}: {}", threads[i],
                                rendezvous::visible_text(content(task + "/comm")), standing(task)));
  }
  if (threads.size() > threads_shown_max) {
    lines.push_back(fmt::format("    and {} threads more", threads.size() - threads_shown_max));
  }
}

// What a program writes, or nothing when it fails or takes too long.
std::string output_of(const std::vector<std::string>& words) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "";
  const rendezvous::UniqueFd out(ends[0]);
  rendezvous::UniqueFd in(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, in.get(), 1);
  ::posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int failed = ::posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  in.reset();
  if (failed != 0) return "";
  std::string text;
  const auto until = steady_clock::now() + py_spy_limit;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(until - steady_clock::now());
    pollfd waited{out.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&waited, 1, static_cast<int>(left.count())) <= 0) break;
    char piece[4096];
    const ssize_t count = ::read(out.get(), piece, sizeof piece);
    if (count <= 0 || text.size() > py_spy_bytes_max) break;
    text.append(piece, static_cast<std::size_t>(count));
  }
  ::kill(pid, SIGKILL);  // Ended already, unless it took too long.
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return text;
}

void add_text(const std::string& text, std::vector<std::string>& lines) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back("    " + rendezvous::visible_text(text.substr(at, end - at)));
    at = end + 1;
  }
}

// Python's own stack. False: it is no Python, or nobody can tell.
bool add_python(const ProcessRow& process, std::vector<std::string>& lines) {
  if (process.name.rfind("python", 0) != 0) return false;
  const std::string text = output_of({"py-spy", "dump", "--pid", std::to_string(process.pid)});
  if (text.empty()) return false;
  add_text(text, lines);
  return true;
}

}  // namespace

std::vector<std::string> rank_stack_lines(int pid, const std::string& own_stack) {
  std::vector<std::string> lines;
  for (const ProcessRow& process : read_with_descendants({pid})) {
    if (process.pid != pid) {
      lines.push_back(fmt::format("  below it: {} (pid {})", rendezvous::visible_text(process.name),
                                  process.pid));
    }
    if (process.state == 'T') lines.push_back("    halted by a signal (state T)");
    if (process.pid == pid) add_text(own_stack, lines);
    if (!add_python(process, lines)) add_threads(process.pid, lines);
  }
  return lines;
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
