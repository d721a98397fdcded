// The page of --status-page: a frame that asks for its content each two seconds, and that content.
// A core.
#pragma once

#include <string>

#include "launcher/status/job_snapshot.h"
#include "plot/run_records.h"

namespace ddprun::launcher {

// Needs nothing but itself and what it asks its own server for: "content".
std::string status_page(const JobSnapshot& job);
std::string status_content(const JobSnapshot& job, const plot::RunRecords& history);

}  // namespace ddprun::launcher
