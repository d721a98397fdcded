// ddprun: options -> agent -> exit status.
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "command_line/standard_streams.h"
#include "launcher/agent.h"
#include "launcher/dry_run.h"
#include "launcher/hosts/node_channel.h"
#include "launcher/hosts/remote_command.h"
#include "launcher/machine/descriptor_budget.h"
#include "launcher/machine/this_machine.h"
#include "launcher/options/arguments.h"
#include "launcher/options/exit_code_map.h"
#include "launcher/options/help.h"
#include "launcher/options/launch_options.h"
#include "launcher/options/subcommands.h"
#include "launcher/output/run_directory.h"
#include "launcher/output/whole_file.h"
#include "launcher/processes/child_process.h"
#include "launcher/ssh/hosts_job.h"
#include "launcher/ssh/started_node.h"
#include "launcher/subcommands.h"
#include "rendezvous/blocked_signals.h"
#include "rendezvous/control/first_cause.h"
#include "rendezvous/secure/security_error.h"

namespace {

std::string own_path(const char* argv0) {
  std::string path(PATH_MAX, '\0');
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  if (size <= 0) return argv0 == nullptr ? "" : argv0;
  path.resize(static_cast<std::size_t>(size));
  return path;
}

std::string name_in(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Before the other nodes are met: a wrong path is a wrong option.
void require_log_dir(const std::string& log_dir) {
  using namespace ddprun;
  const std::string problem = log_dir.empty() ? "" : launcher::log_dir_problem(log_dir);
  if (problem.empty()) return;
  throw launcher::usage_error("--log-dir=" + log_dir + ": " + problem +
                              "; name one where this user may make folders");
}

// Before anything waits for what could never come.
void require_descriptors(const ddprun::launcher::LaunchOptions& options) {
  using namespace ddprun;
  launcher::raise_open_files_limit();
  const launcher::OpenFiles files = launcher::open_files();
  const std::string problem = launcher::descriptors_problem(
      files.free, files.limit, options.nproc_per_node + options.spares);
  if (!problem.empty()) throw std::runtime_error(problem);
}

int run_here(const ddprun::launcher::LaunchOptions& options,
             ddprun::launcher::NodeChannel* starter) {
  require_descriptors(options);
  require_log_dir(options.log_dir);
  return ddprun::launcher::run_agent(options, starter);
}

// Where a script that starts launchers (scripts/run_node.sh) wants to read that this one was not
// killed, and with what it ended: a shell tells a SIGKILL from a status of 137 in no other way.
// Workers do not inherit it, since they may be launchers, too.
std::string take_status_file() {
  const char* const path = std::getenv("DDPRUN_STATUS_FILE");
  const std::string taken = path == nullptr ? "" : path;
  ::unsetenv("DDPRUN_STATUS_FILE");
  return taken;
}

int run(int argc, char** argv) {
  using namespace ddprun;
  int internal = rendezvous::exit_status::internal;
  try {
    const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
    if (arguments == std::vector<std::string>{launcher::node_argument}) {
      launcher::NodeChannel starter(launcher::version_text());
      return run_here(launcher::started_node_options(starter, own_path(argv[0])), &starter);
    }
    if (launcher::find_subcommand(arguments) != nullptr) {
      return launcher::run_subcommand(arguments, own_path(argv[0]));
    }
    const launcher::LaunchOptions options =
        launcher::parse_options(arguments, launcher::environment_variable, own_path(argv[0]),
                                name_in(argc > 0 ? argv[0] : "ddprun"));
    internal = launcher::mapped_exit_status(options.exit_code_map, internal, {});
    if (!options.over_ssh.hosts.empty()) {
      launcher::raise_open_files_limit();
      return launcher::run_on_hosts(options, own_path(argv[0]));
    }
    if (options.dry_run) return launcher::run_dry(options);
    return run_here(options, nullptr);
  } catch (const launcher::UsageExit& usage) {
    std::fprintf(usage.status() == 0 ? stdout : stderr, "%s\n", usage.what());
    return usage.status();
  } catch (const rendezvous::SecurityError& error) {  // A matter of --secret-file and --auth.
    std::fprintf(stderr, "[ddprun] %s\n", error.what());
    return rendezvous::exit_status::usage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[ddprun] cannot go on: %s\n", error.what());
    return internal;
  }
}

// What a command has to say is all that it does: on a full disk it has not done it. A pipe whose
// reader has had enough (| head) is no failure.
int unless_unsaid(int status) {
  const bool refused = std::fflush(stdout) != 0;
  // What the stream could not pass on when its buffer was full has left no reason.
  const char* why = refused ? std::strerror(errno) : "a part of it was refused";
  if (!refused && std::ferror(stdout) == 0) return status;
  pollfd reader{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&reader, 1, 0) == 1 && (reader.revents & POLLERR) != 0) return status;
  std::fprintf(stderr, "[ddprun] cannot write to standard output: %s\n", why);
  return status == 0 ? ddprun::rendezvous::exit_status::internal : status;
}

}  // namespace

int main(int argc, char** argv) {
  ddprun::command_line::fill_closed_streams();
  ddprun::command_line::wait_for_reader_of(STDOUT_FILENO);
  // Who started us may ignore it, and the kernel would then reap our children before we do; or have
  // it blocked, and nothing would tell of what workers leave behind.
  std::signal(SIGCHLD, SIG_DFL);
  ddprun::rendezvous::unblock_signal(SIGCHLD);
  const std::string status_file = take_status_file();
  const int status = unless_unsaid(run(argc, argv));
  if (status_file.empty()) return status;
  const std::string why =
      ddprun::launcher::write_whole_file(status_file, std::to_string(status) + "\n");
  if (!why.empty()) {
    std::fprintf(stderr, "[ddprun] cannot write the exit status to DDPRUN_STATUS_FILE=%s: %s\n",
                 status_file.c_str(), why.c_str());
  }
  return status;
}
