// The words behind `ddprun doctor`. A core: words in, values out.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/options/launch_options.h"
#include "launcher/watch/watch_command.h"

namespace ddprun::launcher {

struct DoctorOptions {
  bool is_probe = false;  // The doctor's end on another host.
  bool json = false;
  bool brief = false;
  ColorWhen color = ColorWhen::Auto;
  std::string write_hostfile;
  int port = 29500;
  std::chrono::milliseconds timeout{3'000};  // Of each step of a connection.
  OverSsh over_ssh;                          // Without hosts: this machine alone.
};

// For the parser, the help, the man page and completions.
const std::vector<WatchOptionRow>& doctor_option_table();

std::string doctor_help();

// `words` follow "doctor". Throws UsageExit.
DoctorOptions parse_doctor_options(const std::vector<std::string>& words,
                                   const EnvironmentLookup& environment);

}  // namespace ddprun::launcher
