// What is said and written on this node when its part in the job is over: the failure block or one
// line on stderr, the file of --report, and the error file that a scheduler asked for.
#pragma once

#include "launcher/options/launch_options.h"
#include "launcher/output/forwarder.h"
#include "launcher/report/failure_report.h"

namespace ddprun::launcher {

// What people are told on stderr: the block of a failure that has a cause, or one line. Empty when
// the job has succeeded. `own_signal` as below.
struct LastWords {
  std::string text;
  bool is_block = false;
  std::size_t headline = 0;         // Of a block: where the line begins that stands out.
  LineKind kind = LineKind::Plain;  // Of a line.
};
LastWords last_words(const FailureReport& report, int own_signal);

// `own_signal`: the first signal that this launcher got, or 0. The block is for failures; a job
// that somebody stopped, or that never began, ends with a line.
void tell_end_of_job(const FailureReport& report, const LaunchOptions& options, int own_signal,
                     OutputForwarder& output);

// Whether the job ended by a failure that has a cause to name.
bool has_cause_to_blame(const FailureReport& report);

}  // namespace ddprun::launcher
