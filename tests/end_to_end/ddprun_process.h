// The real binaries, as the end-to-end tests start them.
#pragma once

#include <chrono>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/testing/process.h"
#include "tests/testing/text.h"

namespace ddprun::testing {

using namespace std::chrono_literals;

// build/bin/NAME.
inline std::string binary(const std::string& name) { return DDPRUN_BIN_DIR "/" + name; }

// The command line of ddprun with these arguments.
inline std::vector<std::string> launch(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), binary("ddprun"));
  return arguments;
}

// One node of a job of two on this machine; `program` and its arguments follow the options.
inline std::vector<std::string> launch_node(int node_rank, std::uint16_t port,
                                            const std::vector<std::string>& options,
                                            const std::vector<std::string>& program) {
  std::vector<std::string> argv =
      launch({"--nnodes", "2", "--node_rank", std::to_string(node_rank), "--master_addr",
              "127.0.0.1", "--master_port", std::to_string(port)});
  argv.insert(argv.end(), options.begin(), options.end());
  argv.insert(argv.end(), program.begin(), program.end());
  return argv;
}

// A worker made of shell commands.
inline std::vector<std::string> shell(const std::string& commands) {
  return {"/bin/sh", "-c", commands};
}

// A shell worker's own process id; "$$" would not do, since a launcher makes "$" of it, as
// torchrun.
inline const std::string read_pid = "read pid rest < /proc/self/stat; ";

// The number that stands behind `text`, which must be there.
inline int number_after(const std::string& output, const std::string& text) {
  const auto at = output.find(text);
  if (at == std::string::npos) throw std::runtime_error("no '" + text + "' in: " + output);
  return std::stoi(output.substr(at + text.size()));
}

inline std::vector<std::string> operator+(std::vector<std::string> left,
                                          const std::vector<std::string>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

}  // namespace ddprun::testing
