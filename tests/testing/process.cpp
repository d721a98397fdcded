// Nothing allocates between fork and exec; after that one poll waits for output and end alike.
#include "tests/testing/process.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <random>
#include <stdexcept>
#include <system_error>

#include "tests/testing/patience.h"

extern char** environ;

namespace ddprun::testing {

namespace {

using Clock = std::chrono::steady_clock;

std::system_error system_failure(const std::string& what) {
  return std::system_error(errno, std::generic_category(), what);
}

int open_pidfd(int pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

// Milliseconds until `deadline`, for poll(): rounded up, so that no loop spins on 0.
int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

bool belongs_to_a_job(std::string_view variable) {
  const std::string_view name = variable.substr(0, variable.find('='));
  for (const std::string_view exact :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
        "MASTER_PORT", "OMP_NUM_THREADS"}) {
    if (name == exact) return true;
  }
  for (const std::string_view prefix :
       {"PET_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "ROLE_", "DDPRUN_"}) {
    if (name.substr(0, prefix.size()) == prefix) return true;
  }
  return false;
}

// A launcher killed by SIGKILL cannot remove its temporary directory: below this one it goes away
// with the test program.
std::string temporary_directory() {
  static const TemporaryFolder folder;
  return folder.path();
}

std::vector<std::string> environment_with(std::map<std::string, std::string> variables) {
  variables.emplace("TMPDIR", temporary_directory());
  // The secret of jobs of several hosts is made there, once for all nodes of a test program.
  variables.emplace("XDG_CONFIG_HOME", temporary_directory() + "/config");
  std::vector<std::string> result;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const std::string name(text.substr(0, text.find('=')));
    if (!belongs_to_a_job(text) && variables.count(name) == 0) result.emplace_back(text);
  }
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

}  // namespace

Process::Process(const std::vector<std::string>& argv,
                 const std::map<std::string, std::string>& variables)
    : started_(Clock::now()) {
  // Everything that allocates happens before the fork.
  const std::vector<std::string> environment = environment_with(variables);
  const std::vector<char*> arguments = pointers_to(argv);
  const std::vector<char*> environment_pointers = pointers_to(environment);
  int pipe_ends[2];
  if (::pipe2(pipe_ends, O_CLOEXEC) != 0) throw system_failure("pipe");
  pid_ = ::fork();
  if (pid_ < 0) throw system_failure("fork");
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, STDIN_FILENO);
    ::dup2(pipe_ends[1], STDOUT_FILENO);
    ::dup2(pipe_ends[1], STDERR_FILENO);
    ::execvpe(arguments[0], arguments.data(), environment_pointers.data());
    ::_exit(127);
  }
  ::close(pipe_ends[1]);
  pipe_ = pipe_ends[0];
  ::fcntl(pipe_, F_SETFL, O_NONBLOCK);
  pidfd_ = open_pidfd(pid_);
  if (pidfd_ < 0) throw system_failure("pidfd_open");
}

Process::~Process() {
  if (!reaped_) {
    const std::vector<int> all = descendants_of(pid_);
    ::kill(pid_, SIGKILL);
    for (const int descendant : all) ::kill(descendant, SIGKILL);
    reap();
  }
  ::close(pidfd_);
  ::close(pipe_);
}

void Process::send_signal(int signal) const {
  if (!reaped_) ::kill(pid_, signal);
}

void Process::read_pending() {
  char buffer[16384];
  for (;;) {
    const ssize_t count = ::read(pipe_, buffer, sizeof buffer);
    if (count <= 0) return;
    output_.append(buffer, static_cast<std::size_t>(count));
  }
}

bool Process::pump(int timeout_ms) {
  pollfd watched[2] = {{pipe_, POLLIN, 0}, {pidfd_, POLLIN, 0}};
  // At end of file the pipe polls ready for ever; then only the pidfd is of interest.
  if (::poll(watched, 1, 0) == 1 && (watched[0].revents & (POLLIN | POLLHUP)) == POLLHUP) {
    watched[0].fd = -1;
  }
  ::poll(watched, 2, timeout_ms);
  const bool ended = (watched[1].revents & POLLIN) != 0;
  read_pending();
  return !ended;
}

bool Process::wait_for_output(std::string_view text, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + patience(limit);
  for (bool alive = true;;) {
    if (output_.find(text) != std::string::npos) return true;
    if (!alive || Clock::now() >= deadline) return false;
    alive = pump(milliseconds_until(deadline));
  }
}

bool Process::wait_until(const std::function<bool()>& done, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + patience(limit);
  constexpr int ask_every_ms = 10;
  while (!done()) {
    if (Clock::now() >= deadline) return false;
    if (!pump(ask_every_ms)) ::poll(nullptr, 0, ask_every_ms);
  }
  return true;
}

ProcessResult Process::wait(std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + patience(limit);
  while (!reaped_) {
    if (!pump(milliseconds_until(deadline))) {
      reap();
    } else if (Clock::now() >= deadline) {
      return {.output = output_};
    }
  }
  return {true, WIFSIGNALED(status_) ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_), output_,
          std::chrono::duration<double>(ran_for_).count()};
}

void Process::reap() {
  while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
  ran_for_ = Clock::now() - started_;
}

ProcessResult run(const std::vector<std::string>& argv, std::chrono::milliseconds limit,
                  const std::map<std::string, std::string>& variables) {
  return Process(argv, variables).wait(limit);
}

std::vector<int> descendants_of(int pid) {
  std::vector<int> result = {pid};
  for (std::size_t next = 0; next < result.size(); ++next) {
    std::error_code gone;
    const std::string tasks = "/proc/" + std::to_string(result[next]) + "/task";
    for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
      std::ifstream children(task.path() / "children");
      for (int child; children >> child;) result.push_back(child);
    }
  }
  result.erase(result.begin());
  return result;
}

std::vector<int> descendants_running(int pid, std::string_view program_name) {
  std::vector<int> result;
  for (const int descendant : descendants_of(pid)) {
    std::error_code gone;
    const auto program =
        std::filesystem::read_symlink("/proc/" + std::to_string(descendant) + "/exe", gone);
    if (!gone && program.filename() == program_name) result.push_back(descendant);
  }
  return result;
}

bool wait_until_gone(const std::vector<int>& pids, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + patience(limit);
  for (const int pid : pids) {
    const int pidfd = open_pidfd(pid);
    if (pidfd < 0) continue;  // ESRCH: gone.
    pollfd watched = {pidfd, POLLIN, 0};
    const bool ended = ::poll(&watched, 1, milliseconds_until(deadline)) == 1;
    ::close(pidfd);
    if (!ended) return false;
  }
  return true;
}

// Below the range from which the kernel takes ports for outgoing connections: one of those could be
// given to somebody before its taker listens. From a random place, as other tests look for one,
// too.
std::uint16_t free_port() {
  constexpr int first = 10'000, tries = 200;
  int ephemeral = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> ephemeral;
  if (ephemeral <= first + tries) throw std::runtime_error("no range to look for free ports in");
  std::random_device random;
  std::uniform_int_distribution<int> any(first, ephemeral - 1);
  for (int i = 0; i < tries; ++i) {
    const int port = any(random);
    const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (probe < 0) throw system_failure("cannot find a free port");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    const bool is_free = ::bind(probe, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::close(probe);
    if (is_free) return static_cast<std::uint16_t>(port);
  }
  throw std::runtime_error("cannot find a free port");
}

}  // namespace ddprun::testing
