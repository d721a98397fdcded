// The page of one or several runs: report.html, which needs nothing but itself. A core.
#pragma once

#include <string>
#include <vector>

#include "plot/run_records.h"

namespace ddprun::plot {

std::string report_page(const std::vector<RunRecords>& runs);

// The figures of that page, each of which is left out when nothing is known for it.
std::string run_charts(const std::vector<RunRecords>& runs);

// What a page begins with, up to and with <body>; `head` goes into it as it stands.
std::string page_head(const std::string& title, const std::string& head = "");

}  // namespace ddprun::plot
