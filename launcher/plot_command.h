// `ddprun plot RUN...`: the files of runs -> report.html.
#pragma once

#include <string>
#include <vector>

namespace ddprun::launcher {

// `arguments` without "plot". Returns the exit status; throws UsageExit for what was given wrong
// and std::runtime_error for what cannot be read or written.
int run_plot(const std::vector<std::string>& arguments);

std::string plot_help();

}  // namespace ddprun::launcher
