// Which program a worker runs, and how it is found.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/launch_options.h"

namespace ddprun::launcher {

struct ProgramRequest {
  std::vector<std::string> words;  // The program and its arguments, as the user wrote them.
  bool module = false;             // -m
  bool no_python = false;
  bool run_path = false;
};

// Fills program, first_argument and program_name. A .py file, -m and --run-path mean Python:
// PYTHON_EXEC, else that of the virtual or conda environment which `launcher_path` lies in, else
// the active virtual environment's, else python3, else python on PATH. Anything else is executed:
// found as a path, then on PATH, then beside the launcher; a script whose first line names Python
// by that with -u, or what it says would come late. Throws UsageExit.
void choose_program(const ProgramRequest& request, const EnvironmentLookup& environment,
                    const std::string& launcher_path, LaunchOptions& options);

// For a job on other hosts, whose files nobody can see from here: only that a program is named.
void keep_program(const ProgramRequest& request, LaunchOptions& options);

}  // namespace ddprun::launcher
