// Each subcommand's name and what runs it; a test finds every one of the table here.
#include "launcher/subcommands.h"

#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>

#include "launcher/machine/this_machine.h"
#include "launcher/options/environment_report.h"
#include "launcher/options/surroundings.h"
#include "launcher/plot/plot_command.h"
#include "launcher/watch/run_watch.h"
#include "launcher/watch/watch_command.h"
#include "rendezvous/control/first_cause.h"

namespace ddprun::launcher {
namespace {

using Words = std::vector<std::string>;

int run_env(const Words& options, const std::string& launcher_path) {
  split_arguments(options);  // Mistyped ones are told before the table.
  const Platform platform = read_platform(surroundings(environment_variable));
  // The options of a job that runs some program which is there.
  Words words = options;
  words.push_back(launcher_path);
  LaunchOptions job;
  std::string refusal;
  try {
    job = parse_options(words, environment_variable, launcher_path);
  } catch (const UsageExit& refused) {
    if (refused.status() == 0) throw;
    const std::string text = refused.what();
    refusal = text.substr(text.find("error: ") + 7);
    refusal.resize(refusal.find('\n'));
  }
  std::fputs(describe_environment(platform, job, refusal).c_str(), stdout);
  return refusal.empty() ? 0 : rendezvous::exit_status::usage;
}

}  // namespace

int run_subcommand(const Words& arguments, const std::string& launcher_path) {
  if (is_watch_command(arguments.at(0))) {
    return run_watch(parse_watch_command(arguments));
  }
  static const std::map<std::string, std::function<int(const Words&, const std::string&)>> runs = {
      {"env", run_env},
      {"plot", [](const Words& words, const std::string&) { return run_plot(words); }}};
  const auto found = runs.find(arguments.at(0));
  if (found == runs.end()) throw std::logic_error("no subcommand is called " + arguments[0]);
  return found->second({arguments.begin() + 1, arguments.end()}, launcher_path);
}

}  // namespace ddprun::launcher
