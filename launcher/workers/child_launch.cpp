// What each stream of a worker is connected to, and why a worker could not be started, in words.
#include "launcher/workers/child_launch.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "launcher/machine/cpu_binding.h"
#include "launcher/output/log.h"
#include "launcher/output/pty.h"
#include "launcher/workers/rank_channel.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {
namespace {

using rendezvous::UniqueFd;

constexpr int pipe_bytes = 1 << 20;  // Fewer wake-ups for a chatty worker.

// Both ends of what connects one of the child's descriptors to its destination.
struct Connection {
  UniqueFd read_end;   // For the forwarder; -1: nothing to forward.
  UniqueFd write_end;  // For the child; -1: it inherits ours.
};

void connect_pipe(Connection& connection) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw StartError(std::string("cannot make a pipe: ") + std::strerror(errno), errno);
  }
  connection.read_end.reset(ends[0]);
  connection.write_end.reset(ends[1]);
  ::fcntl(ends[0], F_SETPIPE_SZ, pipe_bytes);  // Best effort: users have a limit in all.
}

// The environment of this process with `variables` and `extra` ("NAME=value") on top.
std::vector<std::string> make_environment(
    const std::vector<std::pair<std::string, std::string>>& variables, const std::string& extra) {
  std::map<std::string, std::string> merged;
  for (const std::string& text : own_environment()) {
    const std::size_t equals = text.find('=');
    if (equals != text.npos) merged[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : variables) merged[name] = value;
  std::vector<std::string> environment;
  environment.reserve(merged.size() + 1);
  const std::string guard_name = extra.substr(0, extra.find('='));
  for (const auto& [name, value] : merged) {
    if (name != guard_name) environment.push_back(name + "=" + value);
  }
  environment.push_back(extra);
  return environment;
}

std::string advice(const std::string& program, int error_number) {
  switch (error_number) {
    case ENOENT:
      if (program.find('/') == program.npos) return "it is not on PATH; give its path";
      return ::access(program.c_str(), F_OK) == 0 ? "it is there, but not the interpreter that its "
                                                    "first line (#!) or its loader names"
                                                  : "check the path";
    case EACCES:
      return "it is not an executable file; try chmod +x";
    case ENOEXEC:
      return "it is neither a program for this machine nor a script that starts with #!";
    case EAGAIN:
      return "the limit of processes is reached (ulimit -u)";
    case E2BIG:
      return "its arguments and environment are too long";
    default:
      return "";
  }
}

StartError spawn_error(const WorkerSpec& spec, int error_number) {
  const std::string program = spec.argv.empty() ? "" : spec.argv[0];
  std::string message = "cannot start worker " + std::to_string(spec.local_rank) + ": '" + program +
                        "': " + std::strerror(error_number);
  const std::string hint = advice(program, error_number);
  if (!hint.empty()) message += " (" + hint + ")";
  return StartError(message, error_number);
}

void connect_terminal(Connection& connection) {
  Pty pty = open_pty();
  connection = {std::move(pty.our_end), std::move(pty.worker_end)};
}

// A single unprefixed writer keeps the console itself, so that it still sees a terminal; not where
// it is to outlive who reads that, of which it would die by SIGPIPE. What goes only to a file goes
// there directly, unless somebody has to cut that. stderr always passes through us for the failure
// report.
void connect_output(const WorkerSpec& spec, bool may_inherit, Connection& out, Connection& err) {
  const WorkerOutput& wanted = spec.output;
  if (wanted.pty) {
    connect_terminal(out);
    connect_terminal(err);
    return;
  }
  if (spec.is_spare) {  // Where its output goes will change, so it passes through us.
    connect_pipe(out);
    connect_pipe(err);
    return;
  }
  // The same for who may go on into another attempt, whose files are others.
  const bool changes = !wanted.out.file.empty() && spec.keeps_channel;
  const bool cut = !wanted.out.file.empty() && wanted.out.rotation.bytes_max > 0;
  if (!wanted.out.console && !cut && !changes) {
    const std::string& file = wanted.out.file;
    out.write_end = OutputLog::open(file.empty() ? "/dev/null" : file);
  } else if (!may_inherit || spec.outlives_session || !wanted.out.file.empty() ||
             !wanted.prefix.empty()) {
    connect_pipe(out);
  }
  connect_pipe(err);
}

}  // namespace

LaunchedChild launch_child(const WorkerSpec& spec, OutputForwarder& output,
                           const std::string& guard_variable, bool may_inherit_stdout,
                           const DeathMarks& death_marks) {
  Connection out, err;
  std::shared_ptr<OutputForwarder::Stream> stream;
  try {
    connect_output(spec, may_inherit_stdout, out, err);
    stream = output.add(spec.output, std::move(out.read_end), std::move(err.read_end));
  } catch (const std::system_error& error) {
    throw start_error(spec.local_rank, error);
  }
  RankChannel channel;
  if (spec.keeps_channel && !spec.is_spare) {
    try {
      channel = make_rank_channel(spec.local_rank);
    } catch (const StartError&) {
      output.drain(*stream);
      throw;
    }
  }
  ChildSetup setup;
  setup.argv = spec.argv;
  setup.environment = make_environment(spec.variables, guard_variable);
  setup.stdout_fd = out.write_end.get();
  setup.stderr_fd = err.write_end.get();
  setup.key_fd = spec.key_fd;
  setup.spare_fd = spec.is_spare ? spec.channel_fd : channel.theirs.get();
  setup.memory_fd = spec.memory_fd;
  setup.progress_fd = spec.progress_fd;
  setup.death_marks = death_marks;
  setup.cpus = spec.cpus;
  int error_number = 0;
  auto child = ChildProcess::spawn(setup, error_number);
  if (!child) {
    output.drain(*stream);
    throw spawn_error(spec, error_number);
  }
  if (child->binding_error() != 0) {
    spdlog::warn("worker {} runs unbound: the kernel does not let it have CPUs {}: {}",
                 spec.local_rank, format_cpu_list(spec.cpus),
                 std::strerror(child->binding_error()));
  }
  return {std::move(*child), std::move(stream), std::move(channel.ours)};
}

}  // namespace ddprun::launcher
