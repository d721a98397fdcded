// Each subcommand's name and what runs it; a test finds every one of the table here.
#include "launcher/subcommands.h"

#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>

#include "launcher/doctor/doctor_options.h"
#include "launcher/doctor/doctor_visit.h"
#include "launcher/doctor/probe.h"
#include "launcher/machine/this_machine.h"
#include "launcher/options/environment_report.h"
#include "launcher/options/surroundings.h"
#include "launcher/plot_command.h"
#include "launcher/processes/child_process.h"
#include "launcher/watch/run_watch.h"
#include "launcher/watch/watch_command.h"
#include "rendezvous/control/first_cause.h"

namespace ddprun::launcher {
namespace {

using Words = std::vector<std::string>;

// `refusal` gets why no job could be started here, or "".
std::string environment_told(const Words& options, const std::string& launcher_path,
                             const Platform& platform, std::string& refusal) {
  // The options of a job that runs some program which is there.
  Words words = options;
  words.push_back(launcher_path);
  LaunchOptions job;
  try {
    job = parse_options(words, environment_variable, launcher_path);
  } catch (const UsageExit& refused) {
    if (refused.status() == 0) throw;
    const std::string text = refused.what();
    refusal = text.substr(text.find("error: ") + 7);
    refusal.resize(refusal.find('\n'));
  }
  return describe_environment(platform, job, refusal);
}

int run_env(const Words& options, const std::string& launcher_path) {
  split_arguments(options);  // Mistyped ones are told before the table.
  const Platform platform = read_platform(surroundings(environment_variable));
  std::string refusal;
  std::fputs(environment_told(options, launcher_path, platform, refusal).c_str(), stdout);
  return refusal.empty() ? 0 : rendezvous::exit_status::usage;
}

int run_doctor_command(const Words& words, const std::string& launcher_path) {
  const DoctorOptions options = parse_doctor_options(words, environment_variable);
  if (options.is_probe) return run_probe();
  std::string told;
  if (options.over_ssh.hosts.empty()) {
    const Platform platform = read_platform(surroundings(environment_variable));
    std::string refusal;
    if (platform.is_here()) told = environment_told({}, launcher_path, platform, refusal);
  }
  raise_open_files_limit();  // Of which each host takes some.
  return run_doctor(options, launcher_path, told);
}

}  // namespace

int run_subcommand(const Words& arguments, const std::string& launcher_path) {
  if (is_watch_command(arguments.at(0))) {
    raise_open_files_limit();  // Each file that `logs -f` follows is one, and a node may have many.
    return run_watch(parse_watch_command(arguments));
  }
  static const std::map<std::string, std::function<int(const Words&, const std::string&)>> runs = {
      {"doctor", run_doctor_command},
      {"env", run_env},
      {"plot", [](const Words& words, const std::string&) { return run_plot(words); }}};
  const auto found = runs.find(arguments.at(0));
  if (found == runs.end()) throw std::logic_error("no subcommand is called " + arguments[0]);
  return found->second({arguments.begin() + 1, arguments.end()}, launcher_path);
}

}  // namespace ddprun::launcher
