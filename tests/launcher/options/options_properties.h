// What holds for every command line and every environment, however broken: shared by the random
// test and the fuzzer. Needs no test framework: a breach is an exception.
#pragma once

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "launcher/options/launch_options.h"
#include "tests/testing/variables.h"

namespace ddprun::testing {

using Words = std::vector<std::string>;

// A command line led to something that must never happen.
class BrokenProperty : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

inline void expect(bool holds, const std::string& what) {
  if (!holds) throw BrokenProperty(what);
}

inline launcher::LaunchOptions parse_launch(const Words& words, const Variables& variables) {
  const auto look_up = lookup_in(variables);
  return launcher::parse_options(words, look_up, "/opt/bin/ddprun");
}

// Whatever was accepted must be safe to use without another check.
inline void check_accepted(const launcher::LaunchOptions& options, const Words& words) {
  expect(options.nnodes_min >= 1 && options.nnodes_min <= options.nnodes_max, "nodes");
  expect(options.nproc_per_node >= 1 && options.nproc_per_node <= 4'096, "workers");
  const bool static_ranks = options.backend == launcher::RendezvousBackend::Static;
  expect(options.node_rank >= 0 && (!static_ranks || options.node_rank < options.nnodes_max),
         "node rank");
  expect(options.max_restarts >= 0, "restarts");
  expect(options.join_timeout.count() > 0, "join timeout");
  expect(options.last_call_timeout.count() >= 0, "last call");
  expect(options.shutdown_timeout.count() >= 0, "shutdown timeout");
  expect(options.heartbeat_interval.count() > 0, "heartbeat interval");
  expect(options.heartbeat_timeout > options.heartbeat_interval, "heartbeat timeout");
  expect(options.endpoint_port != 0 || options.nnodes_max == 1, "a free port for several nodes");
  expect(!options.run_id.empty(), "names");
  expect(!options.program.empty() && !options.program_name.empty(), "program");
  expect(options.first_argument >= 1 && options.first_argument <= options.program.size(),
         "first argument");
  // The user's arguments are the tail of the command line, byte for byte.
  const std::size_t users = options.program.size() - options.first_argument;
  expect(users < words.size(), "more arguments than were given");
  for (std::size_t i = 1; i <= users; ++i) {
    expect(options.program[options.program.size() - i] == words[words.size() - i], "arguments");
  }
  expect(words[words.size() - users - 1] == options.program_name, "program's name");
  const Words worker = launcher::worker_argv(options, options.nproc_per_node - 1);
  expect(worker.size() == options.program.size() + (options.local_rank_argument ? 1 : 0),
         "a worker's arguments");
}

// True when the command line was accepted, false when it was refused as it should be.
inline bool accepted_or_refused(const Words& words, const Variables& variables) {
  try {
    check_accepted(parse_launch(words, variables), words);
    return true;
  } catch (const launcher::UsageExit& exit) {
    const std::string text = exit.what();
    expect(exit.status() == 0 || exit.status() == 2, "status of a usage exit");
    expect(!text.empty(), "a usage exit without a word");
    expect(exit.status() == 0 || text.rfind("ddprun: error: ", 0) == 0, "start of the message");
    return false;
  }
}

}  // namespace ddprun::testing
