// --dry-run: what a launch would do, and where each value comes from. Nothing is started.
#pragma once

#include <string>
#include <vector>

#include "launcher/machine/cpu_binding.h"
#include "launcher/membership/endpoint.h"
#include "launcher/options/launch_options.h"

namespace ddprun::launcher {

struct DryRunFacts {
  EndpointPlan plan;
  std::string resolve_error;  // Why the endpoint's host name has no address; "" = it has.
  std::string host_name;      // Of this machine.
  EnvironmentLookup environment;
  int cpus = 1;                    // That this process may use.
  std::vector<WorkerCpus> places;  // As in WorkerSpecInputs.
  int gpus = 0;                    // That workers may use.
  int console_columns = 0;         // Of the terminal on stdout; 0: it is none.
};

// A core: the plan as text, for people.
std::string describe_launch(const LaunchOptions& options, const DryRunFacts& facts);

// Prints the plan on stdout and returns the exit status: 0, or that of a launch which could not
// begin.
int run_dry(const LaunchOptions& options);

}  // namespace ddprun::launcher
