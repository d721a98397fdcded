// Spans of time as a trace that chrome://tracing and Perfetto open.
// Spans in, text out. The format: "Trace Event Format", JSON object form, complete events
// ("ph":"X") and metadata ("ph":"M"),
// docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
// A core: no sockets, threads or clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun::trainer {

// Of one thread (or stream). Spans of a thread lie within each other or apart.
struct TraceSpan {
  std::string name;
  const char* category = "";
  std::int64_t start_ns = 0;  // On the monotonic clock, which all processes of a host share.
  std::int64_t end_ns = 0;
  std::int64_t thread = 0;
  const char* argument = nullptr;  // The name of `value`; null: there is none.
  std::int64_t value = 0;
};

struct TraceThread {
  std::int64_t id = 0;
  std::string name;
};

// One rank's. The trace's process is the rank.
struct TraceProcess {
  int rank = 0;
  int world_size = 1;
  std::string host;
  std::int64_t pid = 0;
  std::int64_t wall_minus_monotonic_ns = 0;  // To line up hosts, whose monotonic clocks differ.
  std::vector<TraceThread> threads;          // In the order in which they are to be shown.
  std::size_t dropped_spans = 0;             // That did not fit.
};

// The whole file. Times are microseconds with three decimals, so that no nanosecond is rounded and
// spans nest in the text as they did in time.
std::string trace_json(const TraceProcess& process, const std::vector<TraceSpan>& spans);

}  // namespace ddprun::trainer
