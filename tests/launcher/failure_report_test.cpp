// What people read when a job failed, and what is read from workers' error files.
#include "launcher/failure_report.h"

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/testing/catch.h"

using namespace ddprun::launcher;
using ddprun::rendezvous::FirstCause;

namespace {

FailureReport segfault_on_node1() {
  FailureReport report{
      .program = "train", .this_host = "host-a", .exit_status = 139, .attempts = 3};
  report.max_restarts = 2;
  report.cause = FirstCause{.kind = FirstCause::Kind::WorkerFailed,
                            .host = "host-b",
                            .node_rank = 1,
                            .rank = 3,
                            .local_rank = 1,
                            .pid = 4127,
                            .signal = SIGSEGV,
                            .core_dumped = true,
                            .attempt = 2,
                            .ran_ms = 12'345,
                            .message = "bad pointer",
                            .last_stderr = "line 1\nline 2\n"};
  report.local_workers = {
      {.rank = 0, .local_rank = 0, .pid = 10, .signal = SIGTERM, .stopped_by_us = true},
      {.rank = 1, .local_rank = 1, .pid = 11, .exit_code = 1}};
  return report;
}

bool has(const std::string& text, const std::string& part) {
  INFO(text);
  INFO("looking for: " << part);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("the report names the first cause, its place and its signal",
          "[launcher][failure_report]") {
  const std::string text = to_text(segfault_on_node1());

  has(text, "train FAILED: rank 3 (pid 4127 on host-b) was killed by SIGSEGV after 12 s");
  has(text, "host-b (another node)");
  has(text, "3 (local rank 1)");
  has(text, "killed by SIGSEGV (signal 11), core dumped");
  has(text, "2 (started 3, --max-restarts 2)");
  has(text, "    bad pointer\n");
  has(text, "    line 1\n    line 2\n");
  has(text, "exit status 139");
}

TEST_CASE("siblings that were stopped are told apart from those that failed",
          "[launcher][failure_report]") {
  const std::string text = to_text(segfault_on_node1());

  has(text, "rank 0 (local rank 0, pid 10): stopped (killed by SIGTERM (signal 15))");
  has(text, "rank 1 (local rank 1, pid 11): failed too, later (exit code 1)");
}

TEST_CASE("the cause is not listed again among the others", "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.local_workers = {{.rank = 3, .local_rank = 1, .pid = 4127, .signal = SIGSEGV}};

  CHECK(to_text(report).find("other workers") == std::string::npos);
}

TEST_CASE("many workers are counted, not listed", "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.local_workers.assign(64, {.rank = 0, .pid = 1, .signal = SIGTERM, .stopped_by_us = true});

  has(to_text(report), "    and 48 more\n");
}

TEST_CASE("a lost node and a program that is missing are told in words",
          "[launcher][failure_report]") {
  FailureReport report{.program = "train", .exit_status = 74};
  report.cause = FirstCause{.kind = FirstCause::Kind::NodeLost,
                            .host = "host-b",
                            .node_rank = 1,
                            .message = "it closed the connection"};
  has(to_text(report), "train FAILED: node 1 (host-b) was lost: it closed the connection");

  report.cause->kind = FirstCause::Kind::StartFailed;
  report.cause->message = "cannot start worker 0: 'nope': No such file or directory";
  has(to_text(report), "No such file or directory");
}

TEST_CASE("the report as JSON holds the same facts", "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.cause->last_stderr = "not \xff UTF-8";

  const auto json = nlohmann::json::parse(to_json(report));

  CHECK(json["exit_status"] == 139);
  CHECK(json["first_cause"]["signal_name"] == "SIGSEGV");
  CHECK(json["first_cause"]["rank"] == 3);
  CHECK(json["workers"].size() == 2);
  CHECK(json["workers"][0]["stopped"] == true);
}

TEST_CASE("the launcher's own error file can be read like a worker's",
          "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.ended_s = 1'700'000'000;
  const std::string content = to_error_file(report);

  const auto message = nlohmann::json::parse(content)["message"];
  CHECK(message["errorCode"] == 139);
  CHECK(message["extraInfo"]["timestamp"] == "1700000000");
  has(error_file_message(content), "rank 3 (pid 4127 on host-b) was killed by SIGSEGV");
}

TEST_CASE("both of torch's error file formats are read", "[launcher][failure_report]") {
  const std::string nested =
      R"({"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "Traceback\n  x", "timestamp": "1"}}})";
  const std::string flat = R"({"message": "plain text", "timestamp": 1700000000})";

  CHECK(error_file_message(nested) == "ValueError: no\nTraceback\n  x");
  CHECK(error_file_message(flat) == "plain text");
}

TEST_CASE("a broken or foreign error file loses nothing and throws nothing",
          "[launcher][failure_report]") {
  CHECK(error_file_message("") == "");
  CHECK(error_file_message(" \n") == "");
  CHECK(error_file_message("{\"message\": {\"mess") == "{\"message\": {\"mess");
  CHECK(error_file_message("[1, 2]") == "[1, 2]");
  CHECK(error_file_message("{\"message\": 7}") == "{\"message\": 7}");
  CHECK(error_file_message("\xff\xfe") == "\xff\xfe");
  CHECK(error_file_message(std::string(100'000, 'x')).size() < 2'100);
}
