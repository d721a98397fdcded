// A job's snapshot in Prometheus's text format: what --metrics-file writes and --metrics-port
// serves. docs/metrics.md has the names, which stay. A core.
#pragma once

#include <string>

#include "launcher/status/job_snapshot.h"

namespace ddprun::launcher {

std::string prometheus_text(const JobSnapshot& job);

}  // namespace ddprun::launcher
