// What the platform that started this process says of a job: nodes, node rank, where node 0 is.
// A core: no sockets, threads or clock.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "launcher/options/arguments.h"

namespace ddprun::launcher {

// All that is looked at.
struct Surroundings {
  EnvironmentLookup environment;
  std::string own_host;
  std::function<std::string(const std::string& path)> file;  // Its content, or "".
};

struct Platform {
  std::string name;   // "Slurm's step", "Open MPI"; "" = none was found.
  std::string shown;  // The variable by which it was found, with its value.
  // Option -> value and variable: nnodes, node-rank, master-addr, master-port, rdzv-id.
  std::map<std::string, GivenOption> says;
  std::map<std::string, std::string> missing;  // Option that it cannot say -> what to do.
  // Why its processes are not the nodes of a job, each alone on its host; "" = they are.
  std::string misfit;
  std::string remedy;       // Of a misfit.
  std::string other_count;  // What to do for another number of nodes.
  // Of platforms that tell their hosts and start one process on the first of them: a number of
  // nodes that somebody gave is the word that all of them were started.
  bool nodes_settle_misfit = false;
  std::vector<std::string> rejected;  // "PMI_SIZE=2: Slurm's step is nearer"
  std::vector<std::string> notes;     // For whoever starts a job here.

  bool is_here() const { return !name.empty(); }
};

Platform read_platform(const Surroundings& around);

// Adds what the platform says about options that were not given, and returns notes for the user.
// Nothing where nodes, node rank and address were given, nor with --standalone, which takes away
// what variables say of several nodes if the command line has it. Throws UsageExit where the
// platform and the options contradict each other, and where it has started several launchers of
// which each would be a job of its own, silently.
std::vector<std::string> add_platform(SplitArguments& split, const Platform& platform);

// A port of a job and its step, the same on all nodes.
int port_of_job(long long job, long long step);

}  // namespace ddprun::launcher
