// Two ways through /proc: the kernel's lists of children where it has them, else all processes.
#include "launcher/processes/child_sessions.h"

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "launcher/processes/process_file.h"
#include "launcher/processes/process_stat.h"
#include "rendezvous/parse_number.h"

namespace ddprun::launcher {
namespace {

// The names in a folder that are numbers.
std::vector<int> numbered_entries(const std::string& folder) {
  std::vector<int> numbers;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(folder.c_str()), ::closedir);
  if (!dir) return numbers;
  while (const dirent* entry = ::readdir(dir.get())) {
    const auto number = rendezvous::parse_number<int>(entry->d_name);
    if (number) numbers.push_back(*number);
  }
  return numbers;
}

// /proc/PID/task/TID/children is only there with CONFIG_PROC_CHILDREN.
bool kernel_lists_children() {
  static const bool listed = ::access("/proc/thread-self/children", R_OK) == 0;
  return listed;
}

}  // namespace

ProcessRow read_process(int pid) {
  const auto stat = read_process_stat(pid);
  const auto session = stat ? stat->number(6) : std::nullopt;
  if (!session) return {};
  return {.pid = pid,
          .parent = static_cast<int>(stat->number(4).value_or(0)),
          .group = static_cast<int>(stat->number(5).value_or(0)),
          .session = static_cast<int>(*session),
          .state = stat->state(),
          .name = stat->name()};
}

std::vector<int> read_threads(int pid) {
  std::vector<int> threads = numbered_entries("/proc/" + std::to_string(pid) + "/task");
  std::sort(threads.begin(), threads.end());
  return threads;
}

bool is_exiting(int pid) {
  constexpr long long exiting_flag = 0x4;  // PF_EXITING, linux/sched.h.
  const auto stat = read_process_stat(pid);
  const auto flags = stat ? stat->number(9) : std::nullopt;
  return flags && (*flags & exiting_flag) != 0;
}

// The kernel sets both before it begins to take the process apart.
std::optional<ExitStatus> read_coming_status(int pid) {
  const auto stat = read_process_stat(pid);
  const auto code = stat ? stat->number(52) : std::nullopt;
  if (!is_exiting(pid) || !code || *code == 0) return std::nullopt;
  const int status = static_cast<int>(*code);  // In the form of waitpid(2).
  if (WIFSIGNALED(status)) return ExitStatus{0, WTERMSIG(status), WCOREDUMP(status) != 0};
  return ExitStatus{WEXITSTATUS(status), 0, false};
}

std::vector<ProcessRow> read_all_processes() {
  std::vector<ProcessRow> table;
  for (int pid : numbered_entries("/proc")) {
    ProcessRow row = read_process(pid);
    if (row.pid != 0) table.push_back(std::move(row));
  }
  return table;
}

std::optional<std::vector<int>> read_children(int pid) {
  if (!kernel_lists_children()) return std::nullopt;
  std::vector<int> children;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task/";
  for (int task : read_threads(pid)) {
    std::istringstream list(read_process_file(tasks + std::to_string(task) + "/children"));
    for (int child; list >> child;) children.push_back(child);
  }
  return children;
}

std::vector<int> read_own_children() {
  if (const auto listed = read_children(::getpid())) return *listed;
  std::vector<int> children;
  for (const ProcessRow& row : read_all_processes()) {
    if (row.parent == ::getpid()) children.push_back(row.pid);
  }
  return children;
}

std::vector<ProcessRow> with_descendants(const std::vector<ProcessRow>& table,
                                         const std::vector<int>& roots) {
  std::multimap<int, const ProcessRow*> by_parent;
  std::map<int, const ProcessRow*> by_pid;
  for (const ProcessRow& row : table) {
    by_parent.emplace(row.parent, &row);
    by_pid.emplace(row.pid, &row);
  }
  std::vector<ProcessRow> found;
  std::set<int> seen;
  std::vector<int> open(roots);
  while (!open.empty()) {
    const int pid = open.back();
    open.pop_back();
    const auto row = by_pid.find(pid);
    if (row == by_pid.end() || !seen.insert(pid).second) continue;
    found.push_back(*row->second);
    const auto [first, last] = by_parent.equal_range(pid);
    for (auto child = first; child != last; ++child) open.push_back(child->second->pid);
  }
  return found;
}

std::vector<ProcessRow> read_with_descendants(const std::vector<int>& roots) {
  if (!kernel_lists_children()) return with_descendants(read_all_processes(), roots);
  std::vector<ProcessRow> found;
  std::set<int> seen;
  std::vector<int> open(roots);
  while (!open.empty()) {
    const int pid = open.back();
    open.pop_back();
    if (!seen.insert(pid).second) continue;
    const ProcessRow row = read_process(pid);
    if (row.pid == 0) continue;
    found.push_back(row);
    const auto listed = read_children(pid);
    if (listed) open.insert(open.end(), listed->begin(), listed->end());
  }
  return found;
}

std::string read_wait_channel(int pid) {
  const std::string name = read_process_file("/proc/" + std::to_string(pid) + "/wchan");
  return name == "0" ? "" : name;
}

}  // namespace ddprun::launcher
