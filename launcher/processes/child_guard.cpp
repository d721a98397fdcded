// The guard is forked, not executed: it needs no program of its own to be installed, and holds the
// launcher's pages, which it never writes. It waits in recv() on a socket whose other end only the
// launcher has, so that any death of the launcher ends that wait.
#include "launcher/processes/child_guard.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "launcher/output/run_directory.h"
#include "launcher/processes/child_process.h"
#include "launcher/processes/child_sessions.h"
#include "launcher/processes/close_from.h"
#include "launcher/processes/kill_tree.h"
#include "launcher/processes/process_file.h"
#include "rendezvous/blocked_signals.h"
#include "rendezvous/random_id.h"

namespace ddprun::launcher {
namespace {

constexpr int socket_fd = 3;  // In the guard.
constexpr const char* guard_name = "ddprun-guard";
constexpr std::chrono::seconds kill_limit{10};  // Then what is left cannot be killed.
// The same where there is a worker's own guard, which began a moment later and has as long.
constexpr std::chrono::seconds inner_guard_limit{15};
constexpr int rescan_interval_ms = 5;
constexpr int run_limit_ms = 1'000;
// From the launcher's end until this process runs again on a busy machine, and the file system's
// clock ticks. What workers write then is that they have lost their launcher, or their peers.
constexpr std::chrono::milliseconds notice_time{100};

bool has_variable(int pid, const std::string& variable) {
  const std::string environment = read_process_file("/proc/" + std::to_string(pid) + "/environ");
  return ('\0' + environment).find('\0' + variable + '\0') != std::string::npos;
}

bool is_of_workers(const ProcessRow& process, const std::set<int>& sessions,
                   const std::string& variable) {
  return sessions.count(process.session) != 0 || has_variable(process.pid, variable);
}

// The workers' living processes: by session, by variable, and all that these have started.
std::vector<ProcessRow> find_members(const std::set<int>& sessions, const std::string& variable) {
  const auto table = read_all_processes();
  std::vector<int> roots;
  for (const ProcessRow& row : table) {
    if (is_of_workers(row, sessions, variable)) roots.push_back(row.pid);
  }
  std::vector<ProcessRow> living;
  for (const ProcessRow& row : with_descendants(table, roots)) {
    if (row.state != 'Z' && row.state != 'X' && row.pid != ::getpid()) living.push_back(row);
  }
  return living;
}

// Whoever cannot be killed is left; a guard that has not ended by itself is killed then.
void kill_members(const std::set<int>& sessions, const std::string& variable) {
  const auto begun = std::chrono::steady_clock::now();
  for (;;) {
    const auto members = find_members(sessions, variable);
    if (members.empty()) return;
    const bool has_guard = std::any_of(members.begin(), members.end(), is_guard);
    const auto limit = has_guard ? inner_guard_limit : kill_limit;
    if (std::chrono::steady_clock::now() - begun >= limit) return kill_guards(members);
    // And again until none is found: one may have forked between the look and the signal.
    kill_all(members);
    ::poll(nullptr, 0, rescan_interval_ms);
  }
}

// Keeps only its socket: a listening port, a worker's pipe or the console must not stay open for
// its sake.
void close_what_is_not_ours(int socket) {
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd < socket_fd; ++fd) ::dup2(null, fd);
  if (socket != socket_fd) ::dup2(socket, socket_fd);
  close_from(socket_fd + 1);
}

// With all signals blocked, as it was forked.
[[noreturn]] void run_guard(int socket, const std::string& variable, int semaphores) {
  ::setsid();
  ::prctl(PR_SET_NAME, guard_name);
  ::send(socket, "", 1, MSG_NOSIGNAL);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  close_what_is_not_ours(socket);

  std::set<int> sessions;
  LeftBehind left;
  int record = 0;
  for (;;) {
    std::array<char, sizeof record + 2 * PATH_MAX> message;
    const ssize_t count = ::recv(socket_fd, message.data(), message.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < static_cast<ssize_t>(sizeof record)) break;  // The launcher is gone.
    std::memcpy(&record, message.data(), sizeof record);
    if (record == 0) {
      const std::string_view paths(message.data() + sizeof record,
                                   static_cast<std::size_t>(count) - sizeof record);
      const std::size_t end = std::min(paths.find('\0'), paths.size());
      left.folder = paths.substr(0, end);
      left.socket = paths.substr(std::min(end + 1, paths.size()));
    }
    if (record > 0) sessions.insert(record);
    if (record < 0) sessions.erase(-record);
  }
  const auto killed = std::filesystem::file_time_type::clock::now() - notice_time;
  kill_members(sessions, variable);
  if (!left.folder.empty()) remove_after_kill(left.folder, killed);
  if (!left.socket.empty()) {
    ::unlink(left.socket.c_str());
    ::rmdir(left.socket.substr(0, left.socket.rfind('/')).c_str());
  }
  if (semaphores >= 0) ::semctl(semaphores, 0, IPC_RMID);
  ::_exit(0);
}

}  // namespace

bool is_guard(const ProcessRow& process) { return process.name == guard_name; }

ChildGuard::ChildGuard(int semaphores)
    : variable_(std::string(guard_variable_name) + "=" + rendezvous::random_id()),
      semaphores_(semaphores) {
  start();
}

void ChildGuard::start() {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot make a socket for the guard");
  }
  rendezvous::UniqueFd ours(sockets[0]);
  const rendezvous::UniqueFd theirs(sockets[1]);
  // It is in this process's group until it has run: a Ctrl-C would come to the handlers there, too,
  // which write to a pipe that is this process's, and be taken for a second one.
  const rendezvous::BlockedSignals no_handler_runs_in_the_child;
  pid_ = ::fork();
  if (pid_ == 0) {
    ours.reset();
    run_guard(theirs.get(), variable_, semaphores_);
  }
  if (pid_ < 0) {
    throw std::system_error(errno, std::generic_category(), "cannot start the guard process");
  }
  add_spawned_child(pid_);
  socket_ = std::move(ours);
  runs_ = false;
}

void ChildGuard::wait_until_it_runs() {
  if (std::exchange(runs_, true)) return;
  pollfd word{socket_.get(), POLLIN, 0};
  char byte = 0;
  if (::poll(&word, 1, run_limit_ms) == 1) ::recv(socket_.get(), &byte, sizeof byte, MSG_DONTWAIT);
}

ChildGuard::~ChildGuard() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  remove_spawned_child(pid_);
}

bool ChildGuard::replace_if_ended() {
  if (pid_ <= 0 || ::waitpid(pid_, nullptr, WNOHANG) != pid_) return false;
  remove_spawned_child(pid_);
  socket_.reset();
  pid_ = -1;
  start();
  // The workers keep the variable that they were started with, and so does the new guard.
  send_left_behind();
  for (const int session : sessions_) tell(session);
  wait_until_it_runs();
  return true;
}

bool ChildGuard::knows(const ProcessRow& process) const {
  return is_of_workers(process, sessions_, variable_);
}

void ChildGuard::add_session(int session_id) {
  sessions_.insert(session_id);
  tell(session_id);
}

void ChildGuard::remove_session(int session_id) {
  sessions_.erase(session_id);
  tell(-session_id);
}

void ChildGuard::set_left_behind(LeftBehind left) {
  left_ = std::move(left);
  send_left_behind();
}

void ChildGuard::send_left_behind() {
  const int record = 0;
  std::string message(reinterpret_cast<const char*>(&record), sizeof record);
  message += left_.folder + '\0' + left_.socket;
  while (::send(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL) < 0 &&
         errno == EINTR) {
  }
}

// A guard that somebody killed is no error here: SIGCHLD tells of it, and it is replaced then.
void ChildGuard::tell(int record) {
  while (::send(socket_.get(), &record, sizeof record, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

}  // namespace ddprun::launcher
