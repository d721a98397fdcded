// As if somebody had logged in, gone to the folder, set the variables and typed the arguments.
#include "launcher/ssh/started_node.h"

#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/machine/this_machine.h"

namespace ddprun::launcher {
namespace {

// As mpirun: where the folder is not there, the job runs where the login begins. What it cannot
// find then it says itself.
std::string go_to(const std::string& folder) {
  if (folder.empty() || ::chdir(folder.c_str()) == 0) {
    if (!folder.empty()) ::setenv("PWD", folder.c_str(), 1);
    return "";
  }
  const std::string why = std::strerror(errno);
  char here[PATH_MAX];
  const char* const stays = ::getcwd(here, sizeof here);
  return "cannot go to " + folder + " (" + why + "): running in " +
         (stays != nullptr ? stays : "the login's folder");
}

void take_variables(const std::vector<std::string>& variables) {
  for (const std::string& variable : variables) {
    const std::size_t equals = variable.find('=');
    if (equals == 0 || equals == variable.npos) continue;
    ::setenv(variable.substr(0, equals).c_str(), variable.c_str() + equals + 1, 1);
  }
}

// Options in variables, of ours and of a Slurm step, were read by the command that was typed. Of
// the whole job they say what must not be said to a node, and on each host they may be others.
std::optional<std::string> own_variable(const std::string& name) {
  for (const char* start : {"PET_", "DDPRUN_", "SLURM_STEP_"}) {
    if (name.rfind(start, 0) == 0) return std::nullopt;
  }
  return environment_variable(name);
}

}  // namespace

LaunchOptions started_node_options(const NodeChannel& starter, const std::string& launcher_path) {
  const NodeRequest& request = starter.request();
  std::string note = go_to(request.folder);
  take_variables(request.variables);
  std::vector<std::string> arguments = request.arguments;
  if (starter.secret_fd() >= 0) {
    arguments.insert(arguments.begin(),
                     "--secret-file=/dev/fd/" + std::to_string(starter.secret_fd()));
  }
  LaunchOptions options =
      parse_options(arguments, own_variable, launcher_path, "ddprun", StartedBy::HostsLauncher);
  if (request.any_port) options.endpoint_port = 0;
  if (request.is_host) options.is_host = request.is_host;
  options.notes.clear();  // What they say of the options was told where these were typed.
  if (!note.empty()) options.notes.push_back(std::move(note));
  return options;
}

}  // namespace ddprun::launcher
