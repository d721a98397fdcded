// The commands that look once; top and logs have files of their own.
#include "launcher/watch/run_watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "launcher/watch/follow_logs.h"
#include "launcher/watch/found_looks.h"
#include "launcher/watch/job_lines.h"
#include "launcher/watch/status_text.h"
#include "launcher/watch/top_screen.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds status_answer_limit{2'000};
constexpr int between_looks_ms = 250;      // Processor time of now is the difference of two looks.
constexpr int between_all_nodes_ms = 600;  // Launchers look at each other twice a second.

std::size_t output_columns() {
  winsize window{};
  // Nobody's terminal cuts what goes into a pipe or a file.
  if (::isatty(STDOUT_FILENO) == 0) return std::string::npos;
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 ? window.ws_col : 80;
}

int print_json(FoundLooks& found) {
  std::string text = "[";
  for (const Look& look : found.looks()) text += (text.size() > 1 ? ",\n" : "") + to_json(look.now);
  std::printf("%s]\n", text.c_str());
  return found.looks().empty() ? 1 : 0;
}

int run_status(const WatchCommand& command) {
  FoundLooks found(command);
  if (command.json) found.keep_all();
  found.look(status_answer_limit);
  if (command.json) return print_json(found);
  for (const std::string& note : found.notes()) std::printf("%s\n", note.c_str());
  if (found.looks().empty()) return found.found() ? 0 : 1;
  if (found.looks().size() > 1 && command.job.empty()) {
    std::vector<JobSnapshot> jobs;
    for (const Look& look : found.looks()) jobs.push_back(look.now);
    std::printf("%sddprun status JOB shows one of them, by its pid or name.\n",
                list_text(jobs, output_columns()).c_str());
    return 0;
  }
  const std::vector<Look> first = found.looks();
  const bool alone = std::all_of(first.begin(), first.end(),
                                 [](const Look& look) { return look.now.others.empty(); });
  ::poll(nullptr, 0, alone ? between_looks_ms : between_all_nodes_ms);
  found.look(status_answer_limit);
  // One that has ended in that moment is shown as it was.
  for (const Look& look : found.looks().empty() ? first : found.looks()) {
    std::printf("%s", status_text(look, output_columns(), zone_seconds()).c_str());
  }
  return 0;
}

// Of a job of several nodes its launcher asks all; else we look ourselves.
int run_stacks(const WatchCommand& command) {
  FoundLooks found(command);
  found.look(status_answer_limit);
  for (const std::string& note : found.notes()) std::fprintf(stderr, "%s\n", note.c_str());
  if (found.looks().empty()) return 1;
  bool any = false;
  for (const FoundJob& job : found.jobs()) {
    const auto lines = job_stack_lines(found, job, command.rank);
    if (lines.empty()) continue;
    any = true;
    if (found.jobs().size() > 1) std::printf("%s\n", headline(*job.snapshot).c_str());
    for (const std::string& line : lines) std::printf("%s\n", line.c_str());
  }
  if (!any) std::fprintf(stderr, "ddprun stacks: no such rank runs\n");
  return any ? 0 : 1;
}

int run_command(const WatchCommand& command) {
  switch (command.kind) {
    case WatchCommand::Kind::Status:
      return run_status(command);
    case WatchCommand::Kind::Top:
      return run_top(command);
    case WatchCommand::Kind::Logs:
      return run_logs(command);
    case WatchCommand::Kind::Stacks:
      break;
  }
  return run_stacks(command);
}

}  // namespace

int run_watch(const WatchCommand& command) {
  try {
    FoundLooks any(command);
    any.look(status_answer_limit);
    if (any.found()) return run_command(command);
  } catch (const RemoteJobError& error) {
    if (command.json) std::puts("[]");
    std::fprintf(stderr, "%s\n", error.what());
    return error.status();
  }
  if (command.json) std::puts("[]");
  std::fprintf(
      stderr, "%s\n",
      command.job.empty()
          ? "ddprun: no job of yours runs on this host"
          : fmt::format("ddprun: no job of yours on this host is called {}", command.job).c_str());
  return 1;
}

}  // namespace ddprun::launcher
