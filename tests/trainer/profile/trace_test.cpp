// Traces, the window of steps that they show, and the memory of a process.
#include "trainer/profile/trace.h"

#include <nlohmann/json.hpp>
#include <thread>

#include "tests/testing/catch.h"
#include "trainer/profile/profile_window.h"
#include "trainer/profile/span_recorder.h"
#include "trainer/report/memory_use.h"

using namespace ddprun::trainer;
using Json = nlohmann::json;

namespace {

std::vector<Json> events_of(const Json& trace, const std::string& name) {
  std::vector<Json> found;
  for (const Json& event : trace["traceEvents"]) {
    if (event["name"] == name) found.push_back(event);
  }
  return found;
}

}  // namespace

TEST_CASE("a trace names its process and threads, and shows each span", "[trainer][trace]") {
  const TraceProcess process{.rank = 3,
                             .world_size = 4,
                             .host = "node\"1",
                             .pid = 77,
                             .wall_minus_monotonic_ns = 5,
                             .threads = {{10, "training"}, {11, "communication"}}};
  const std::string text = trace_json(process, {{.name = "forward",
                                                 .category = "phase",
                                                 .start_ns = 1'002'003,
                                                 .end_ns = 1'002'103,
                                                 .thread = 10},
                                                {.name = "a\\b\n\xff",
                                                 .start_ns = 7,
                                                 .end_ns = 7,
                                                 .thread = 11,
                                                 .argument = "bytes",
                                                 .value = 9}});

  const Json trace = Json::parse(text);
  CHECK(trace["otherData"]["rank"] == 3);
  CHECK(trace["otherData"]["host"] == "node\"1");
  CHECK(events_of(trace, "process_name")[0]["args"]["name"] == "rank 3 (node\"1, pid 77)");
  const auto threads = events_of(trace, "thread_name");
  REQUIRE(threads.size() == 2);
  CHECK(threads[1]["tid"] == 11);
  CHECK(threads[1]["args"]["name"] == "communication");
  for (const Json& event : trace["traceEvents"]) CHECK(event["pid"] == 3);
  const Json forward = events_of(trace, "forward").at(0);
  CHECK(forward["ph"] == "X");
  CHECK(forward["tid"] == 10);
  CHECK(text.find(R"("ts":1002.003,"dur":0.100)") != std::string::npos);
  const Json strange = events_of(trace, "a\\b\n\xef\xbf\xbd").at(0);
  CHECK(strange["args"]["bytes"] == 9);
  CHECK(strange["dur"] == 0);
}

TEST_CASE("a trace without spans is one too", "[trainer][trace]") {
  const Json trace = Json::parse(trace_json({.host = "h"}, {}));
  CHECK(trace["traceEvents"].size() == 2);
}

TEST_CASE("spans are kept while the recorder is open, up to its limit", "[trainer][trace]") {
  SpanRecorder recorder(3);
  recorder.add({.name = "before"});
  recorder.open();
  recorder.name_thread(SpanRecorder::this_thread(), "main");
  recorder.name_thread(SpanRecorder::this_thread(), "a second name");
  std::thread([&] {
    recorder.add({.name = "other", .thread = SpanRecorder::this_thread()});
  }).join();
  for (int i = 0; i < 4; ++i) recorder.add({.name = "own", .thread = SpanRecorder::this_thread()});
  recorder.close();
  recorder.add({.name = "after"});

  TraceProcess process;
  const auto spans = recorder.take(process);

  REQUIRE(spans.size() == 3);
  CHECK(spans[0].name == "other");
  CHECK(process.dropped_spans == 2);
  REQUIRE(process.threads.size() == 2);
  CHECK(process.threads[0].name == "main");
  CHECK(process.threads[1].name == "thread " + std::to_string(spans[0].thread));
}

TEST_CASE("no span is lost while several threads record", "[trainer][trace]") {
  SpanRecorder recorder;
  recorder.open();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      recorder.name_thread(SpanRecorder::this_thread(), "worker");
      for (int span = 0; span < 1000; ++span) {
        recorder.add({.name = "own", .thread = SpanRecorder::this_thread()});
      }
    });
  }
  TraceProcess process;
  std::size_t spans = recorder.take(process).size();  // While they go on.
  for (std::thread& thread : threads) thread.join();
  spans += recorder.take(process).size();
  CHECK(spans == 4000);
  CHECK(process.dropped_spans == 0);
  CHECK(process.threads.size() == 4);
}

TEST_CASE("the window of a trace is two numbers of steps", "[trainer][trace]") {
  const auto window = parse_profile_window("3:12");
  REQUIRE(window);
  CHECK(window->first == 3);
  CHECK(window->last == 12);
  CHECK(parse_profile_window("0:1"));
  for (const char* text : {"", ":", "5", "5:", ":5", "5:5", "6:5", "-1:5", "1:2:3", "1:2x", " 1:2",
                           "1:99999999999999999999"}) {
    INFO(text);
    CHECK_FALSE(parse_profile_window(text));
  }
}

TEST_CASE("memory is read from the kernel's status text", "[trainer][memory]") {
  const MemoryUse use = parse_memory_use(
      "Name:\ttrain\nVmPeak:\t 9000 kB\nVmHWM:\t     300 kB\nVmRSS:\t    200 kB\n");
  CHECK(use.resident_bytes == 200 * 1024);
  CHECK(use.resident_peak_bytes == 300 * 1024);
  CHECK(parse_memory_use("").resident_bytes == 0);
  CHECK(parse_memory_use("VmRSS:\t").resident_bytes == 0);
  const MemoryUse own = memory_use();
  CHECK(own.resident_bytes > 0);
  CHECK(own.resident_peak_bytes >= own.resident_bytes);
}
