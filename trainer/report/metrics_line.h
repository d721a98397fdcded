// A line of --metrics: what happened as a JSON object. Which events and fields there are stands in
// trainer/report/reporter.h.
//
// Fields are plain values, so that the many files that tell of something need not compile a JSON
// library beside LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace ddprun::trainer {

struct MetricsField {
  std::string name;
  std::variant<bool, std::int64_t, std::uint64_t, double, std::string, std::vector<int>> value;
};
using MetricsFields = std::vector<MetricsField>;  // In the order in which they are written.

// Without the end of the line. A number that JSON lacks (NaN, infinity) becomes null, and what is
// not UTF-8 in a text U+FFFD: paths are bytes.
std::string metrics_line(const std::string& event, double unix_time_s, const MetricsFields& fields);

}  // namespace ddprun::trainer
