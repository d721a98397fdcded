// Text by hand and not by the JSON library: a trace has very many spans of one shape.
#include "trainer/profile/trace.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

namespace ddprun::trainer {
namespace {

constexpr std::size_t bytes_per_span = 160;  // An estimate, to allocate once.

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/true,
                                   nlohmann::json::error_handler_t::replace);
}

std::string microseconds(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

void add_metadata(std::string& out, int rank, std::int64_t thread, const char* what,
                  const char* key, const std::string& value) {
  fmt::format_to(std::back_inserter(out),
                 R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{"{}":{}}}}},)"
                 "\n",
                 rank, thread, what, key, value);
}

void add_span(std::string& out, int rank, const TraceSpan& span) {
  fmt::format_to(std::back_inserter(out),
                 R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"cat":"{}","name":{})", rank,
                 span.thread, microseconds(span.start_ns),
                 microseconds(span.end_ns - span.start_ns), span.category, json_text(span.name));
  if (span.argument != nullptr) {
    fmt::format_to(std::back_inserter(out), R"(,"args":{{"{}":{}}})", span.argument, span.value);
  }
  out += '}';
}

}  // namespace

std::string trace_json(const TraceProcess& process, const std::vector<TraceSpan>& spans) {
  std::string out;
  out.reserve((spans.size() + process.threads.size() + 8) * bytes_per_span);
  fmt::format_to(std::back_inserter(out),
                 R"({{"displayTimeUnit":"ms","otherData":{{"rank":{},"world_size":{},"host":{},)"
                 R"("pid":{},"wall_minus_monotonic_ns":{},"dropped_spans":{}}},"traceEvents":[)"
                 "\n",
                 process.rank, process.world_size, json_text(process.host), process.pid,
                 process.wall_minus_monotonic_ns, process.dropped_spans);
  const std::string name =
      fmt::format("rank {} ({}, pid {})", process.rank, process.host, process.pid);
  for (std::size_t i = 0; i < process.threads.size(); ++i) {
    const TraceThread& thread = process.threads[i];
    add_metadata(out, process.rank, thread.id, "thread_name", "name", json_text(thread.name));
    add_metadata(out, process.rank, thread.id, "thread_sort_index", "sort_index",
                 std::to_string(i));
  }
  for (const TraceSpan& span : spans) {
    add_span(out, process.rank, span);
    out += ",\n";
  }
  add_metadata(out, process.rank, 0, "process_sort_index", "sort_index",
               std::to_string(process.rank));
  add_metadata(out, process.rank, 0, "process_name", "name", json_text(name));
  out.resize(out.size() - 2);  // The last comma and the line's end.
  out += "\n]}\n";
  return out;
}

}  // namespace ddprun::trainer
