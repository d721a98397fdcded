// What people read when a job failed, and what is read from workers' error files.
#include "launcher/report/failure_report.h"

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <random>

#include "launcher/report/error_file.h"
#include "launcher/report/stack_text.h"
#include "tests/testing/catch.h"
#include "tests/testing/check_contains.h"

using namespace ddprun::launcher;
using ddprun::rendezvous::FirstCause;
using ddprun::testing::check_contains;

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

}  // namespace

TEST_CASE("the report names the first cause, its place and its signal",
          "[launcher][failure_report]") {
  const std::string text = to_text(segfault_on_node1());

  check_contains(text,
                 "train FAILED: rank 3 (pid 4127 on host-b) was killed by SIGSEGV after 12 s");
  check_contains(text, "host-b (another node)");
  check_contains(text, "3 (local rank 1)");
  check_contains(text, "killed by SIGSEGV (signal 11), core dumped");
  check_contains(text, "2 (started 3, --max-restarts 2)");
  check_contains(text, "    bad pointer\n");
  check_contains(text, "    line 1\n    line 2\n");
  check_contains(text, "exit status 139");
}

TEST_CASE("the whole of a report, each row where it belongs", "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.local_workers[1].note = "it hangs in the kernel";
  report.log_dir = "/logs";
  const std::string rule(60, '-');
  CHECK(to_text(report) ==
        rule +
            "\ntrain FAILED: rank 3 (pid 4127 on host-b) was killed by SIGSEGV after 12 s\n"
            "first cause\n"
            "  host        host-b (another node)\n"
            "  node        1\n"
            "  rank        3 (local rank 1)\n"
            "  pid         4127\n"
            "  ended       killed by SIGSEGV (signal 11), core dumped\n"
            "  after       12 s\n"
            "  attempt     2 (started 3, --max-restarts 2)\n"
            "  message\n"
            "    bad pointer\n"
            "  last lines of its stderr\n"
            "    line 1\n"
            "    line 2\n"
            "  other workers of this node\n"
            "    rank 0 (local rank 0, pid 10): stopped (killed by SIGTERM (signal 15))\n"
            "    rank 1 (local rank 1, pid 11): failed too, later (exit code 1); it hangs in the "
            "kernel\n"
            "  logs        /logs\n"
            "  exit status 139\n" +
            rule);

  // A node has no rank of a worker and no process, and only the first rank of a node is 0.
  report.cause = FirstCause{.kind = FirstCause::Kind::NodeLost,
                            .host = "host-a",
                            .node_rank = 0,
                            .message = "it closed the connection"};
  report.local_workers.clear();
  report.log_dir.clear();
  CHECK(to_text(report) == rule +
                               "\ntrain FAILED: node 0 (host-a) was lost: it closed the "
                               "connection\n"
                               "first cause\n"
                               "  host        host-a\n"
                               "  node        0\n"
                               "  attempt     0 (started 3, --max-restarts 2)\n"
                               "  exit status 139\n" +
                               rule);
}

TEST_CASE("who recorded its error and ended behind another is told with both ends",
          "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.this_host = "host-b";
  report.cause->ended_first = "rank 1 (pid 11 on host-b) ended with exit code 1 after 13 s";
  report.local_workers.push_back(
      {.rank = 3, .local_rank = 1, .pid = 4127, .exit_code = 7, .before_the_cause = true});
  check_contains(to_text(report),
                 "  failed      after 12 s, when it recorded its error\n"
                 "  ended       failed too (exit code 7)\n"
                 "  ended first rank 1 (pid 11 on host-b) ended with exit code 1 after 13 s\n"
                 "  attempt ");
}

TEST_CASE("who stood halted is told as that, with the end of who waited for it",
          "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.cause->halted = true;
  report.cause->ended_first = "rank 1 (pid 11 on host-b) ended with exit code 1 after 12 s";
  check_contains(to_text(report),
                 "FAILED: rank 3 (pid 4127 on host-b) was halted by a signal, as was seen after 12 "
                 "s; ended first: rank 1 (pid 11 on host-b) ended with exit code 1 after 12 s\n");
  check_contains(to_text(report),
                 "  failed      after 12 s it was seen to be halted by a signal\n");
}

TEST_CASE("what a worker's last words would do to a terminal is shown instead",
          "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.cause->message =
      std::string("\033[2Jcleared\tand\0\x7f \033[1;31mred\033[0m \u009b31m", 38);
  report.cause->last_stderr = "\033]0;title\a\nna\u00efve\n";
  const std::string text = to_text(report);

  check_contains(text, "    ^[[2Jcleared\tand^@^? red M-^[31m\n");
  check_contains(text, "    ^[]0;title^G\n    na\u00efve\n");
  CHECK(text.find('\033') == std::string::npos);
  CHECK(text.find('\0') == std::string::npos);
}

TEST_CASE("siblings that were stopped are told apart from those that failed",
          "[launcher][failure_report]") {
  const std::string text = to_text(segfault_on_node1());

  check_contains(text, "rank 0 (local rank 0, pid 10): stopped (killed by SIGTERM (signal 15))");
  check_contains(text, "rank 1 (local rank 1, pid 11): failed too, later (exit code 1)");
}

TEST_CASE("of one that failed without a message the last line that it printed is listed",
          "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  WorkerEnd& stopped = report.local_workers[0];
  WorkerEnd& failed = report.local_workers[1];
  stopped.last_stderr = failed.last_stderr = "step 6\rstep 7\nerror: the peer is gone\n \n";
  check_contains(to_text(report), "pid 10): stopped (killed by SIGTERM (signal 15))\n");
  check_contains(to_text(report),
                 "pid 11): failed too, later (exit code 1): error: the peer is gone\n");

  failed.last_stderr = "step 6\rrank 1: bad pointer\r";
  report.cause->message = "rank 3: bad pointer";
  check_contains(to_text(report), "pid 11): failed too, later (exit code 1): the same message\n");

  failed.signal = SIGKILL;  // It had no time for words.
  check_contains(to_text(report), "failed too, later (killed by SIGKILL (signal 9))\n");
}

TEST_CASE("the cause is not listed again among the others", "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.local_workers = {{.rank = 3, .local_rank = 1, .pid = 4127, .signal = SIGSEGV}};

  CHECK(to_text(report).find("other workers") == std::string::npos);
}

TEST_CASE("14.8: what another worker said cannot command the terminal either",
          "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.local_workers[1].message = "\x1b]0;title\x07 caf\xc3\xa9";

  check_contains(to_text(report), ": ^[]0;title^G caf\xc3\xa9\n");
}

TEST_CASE("14.2: others are listed with their own words, a line each",
          "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.local_workers[0].message = "KeyError: 'labels'\nTraceback";
  report.local_workers.resize(40, {.rank = 9, .pid = 1, .signal = SIGTERM, .stopped_by_us = true});
  report.local_workers.back().message = std::string(159, 'x') + "\xc3\xa9";

  const std::string text = to_text(report);

  check_contains(text, "pid 10): stopped (killed by SIGTERM (signal 15)): KeyError: 'labels'\n");
  check_contains(text, std::string(159, 'x') + " ...\n");  // Not half a character.
  check_contains(text, "    and 34 more\n");
}

TEST_CASE("many workers are counted, not listed", "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.local_workers.assign(64, {.rank = 0, .pid = 1, .signal = SIGTERM, .stopped_by_us = true});

  check_contains(to_text(report), "    and 58 more\n");
}

TEST_CASE("a lost node and a program that is missing are told in words",
          "[launcher][failure_report]") {
  FailureReport report{.program = "train", .exit_status = 74};
  report.cause = FirstCause{.kind = FirstCause::Kind::NodeLost,
                            .host = "host-b",
                            .node_rank = 1,
                            .message = "it closed the connection"};
  check_contains(to_text(report),
                 "train FAILED: node 1 (host-b) was lost: it closed the connection");

  report.cause->kind = FirstCause::Kind::StartFailed;
  report.cause->message = "cannot start worker 0: 'nope': No such file or directory";
  check_contains(to_text(report), "No such file or directory");
}

TEST_CASE("14.8: what came of the cause is told beside it", "[launcher][failure_report]") {
  FailureReport report{.program = "train", .this_host = "host-a", .exit_status = 71};
  report.cause = FirstCause{.kind = FirstCause::Kind::NodeLost,
                            .host = "host-b",
                            .node_rank = 1,
                            .message = "it closed the connection"};
  const std::string cause = "node 1 (host-b) was lost: it closed the connection";
  const std::string then =
      "1 more node did not join within 4 s (1 of 2 nodes came); node 1 was lost";
  report.why = then;

  check_contains(to_text(report),
                 "train FAILED: " + cause + "\n  then        1 more node did not join");
  CHECK(nlohmann::json::parse(to_json(report))["why"] == cause + "; then: " + then);
  check_contains(to_error_file(report), "; then: 1 more node");

  report.why = cause + "; no restarts are left";
  CHECK(to_text(report).find("  then ") == std::string::npos);
  CHECK(nlohmann::json::parse(to_json(report))["why"] == cause);
}

TEST_CASE("the report as JSON holds the same facts", "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.cause->last_stderr = "not \xff UTF-8";

  const auto json = nlohmann::json::parse(to_json(report));

  CHECK(json["exit_status"] == 139);
  CHECK(json["first_cause"]["signal_name"] == "SIGSEGV");
  report.cause->signal = 0;
  CHECK(nlohmann::json::parse(to_json(report))["first_cause"]["signal_name"] == "");
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
  check_contains(error_file_message(content), "rank 3 (pid 4127 on host-b) was killed by SIGSEGV");
}

TEST_CASE("the culprit's own error file is passed on, with how it ended",
          "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.culprits_error_file = R"({"message": {"message": "KeyError: 'x'", "extraInfo": {}}})";
  const auto code = [&] { return nlohmann::json::parse(to_error_file(report))["message"]; };
  CHECK(code()["errorCode"] == -SIGSEGV);  // Python's way.
  CHECK(code()["message"] == "KeyError: 'x'");
  report.cause->signal = 0;
  report.cause->exit_code = 9;
  CHECK(code()["errorCode"] == 9);
  // Its own end, where another one's became the job's.
  report.local_workers.push_back({.rank = 3, .pid = 4127, .exit_code = 5});
  CHECK(code()["errorCode"] == 5);
  report.culprits_error_file = "of another format";
  CHECK(code()["errorCode"] == 139);
  CHECK(code()["extraInfo"]["py_callstack"] == "bad pointer");
  report.cause->message.clear();
  check_contains(code()["extraInfo"]["py_callstack"], "rank 3 (pid 4127 on host-b)");
}

TEST_CASE("both of torch's error file formats are read", "[launcher][failure_report]") {
  const std::string nested =
      R"({"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "Traceback\n  x", "timestamp": "1"}}})";
  const std::string flat = R"({"message": "plain text", "timestamp": 1700000000})";

  CHECK(error_file_message(nested) == "ValueError: no\nTraceback\n  x");
  CHECK(error_file_message(flat) == "plain text");
}

// As json.dump writes them by default: open(b"\xff") names a file that is not UTF-8.
TEST_CASE("halves of pairs in an error file, which Python writes, are read",
          "[launcher][failure_report]") {
  const std::string replaced = "\xEF\xBF\xBD";
  const auto file = [](const std::string& said) {
    return R"({"message": {"message": ")" + said + R"(", "extraInfo": {"timestamp": "1"}}})";
  };
  for (const auto& [said, read] : std::vector<std::pair<std::string, std::string>>{
           {R"(bad \udcff)", "bad " + replaced},
           {R"(\uDCFF\ud83dx)", replaced + replaced + "x"},
           {R"(\ud83d\ud83d\ude00)", replaced + "\xF0\x9F\x98\x80"},
           {R"(\ude00\ud83d\ude00)", replaced + "\xF0\x9F\x98\x80"},
           {R"(\\udcff)", R"(\udcff)"},
           {R"(\\\udcff)", "\\" + replaced}}) {
    INFO(said);
    const ErrorFile error = parse_error_file(file(said), {});
    CHECK(error.message == read);
    CHECK(error.whole);
    CHECK(nlohmann::json::parse(with_error_code(file(said), 7))["message"]["errorCode"] == 7);
  }
}

TEST_CASE("an error file that is too long to be read whole counts as one",
          "[launcher][failure_report]") {
  const std::string begin = R"({"message": {"message": "ValueError)";
  const std::string cut = begin + std::string(error_file_bytes_max - begin.size(), 'x');
  CHECK(parse_error_file(cut, {}).whole);
  CHECK_FALSE(parse_error_file(cut.substr(1), {}).whole);
  CHECK_FALSE(parse_error_file(begin, {}).whole);
  CHECK_FALSE(parse_error_file(std::string(error_file_bytes_max, 'x'), {}).whole);
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

TEST_CASE("memory, core dump, logs and advice are told", "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.cause->signal = SIGKILL;
  report.cause->oom_killed = true;
  report.cause->memory_limit_bytes = 64 << 20;
  report.cause->memory_peak_bytes = (64 << 20) - 4096;
  report.cause->core = "/cores/core.4127";
  report.cause->log_files = "/logs/1/stdout.log\n/logs/1/stderr.log";
  report.cause->advice =
      "memory ran out and the kernel killed it: fewer workers on this node, or a higher limit";

  const std::string text = to_text(report);

  check_contains(text, "was killed by SIGKILL (out of memory) after 12 s");
  check_contains(text, "  memory      ran out: the limit is 64.0 MiB, the peak was 64.0 MiB\n");
  check_contains(text, "  core dump   /cores/core.4127\n");
  check_contains(text, "  its logs    /logs/1/stdout.log\n              /logs/1/stderr.log\n");
  check_contains(text,
                 "  advice      memory ran out and the kernel killed it: fewer workers on this\n"
                 "              node, or a higher limit\n  exit status 139\n");
  const auto cause = nlohmann::json::parse(to_json(report))["first_cause"];
  CHECK(cause["oom_killed"] == true);
  CHECK(cause["memory_limit_bytes"] == 64 << 20);
  CHECK(cause["core"] == "/cores/core.4127");
  CHECK(cause["log_files"].size() == 2);
  CHECK(cause["advice"].get<std::string>().find("memory ran out") == 0);
  CHECK(cause["signal_name"] == "SIGKILL");

  report.cause->memory_peak_bytes = 0;  // Of an older kernel.
  report.cause->advice = std::string(90, 'x') + " is one word";
  report.local_workers = {{.rank = 0, .pid = 1}};
  const std::string other = to_text(report);
  check_contains(other, "  memory      ran out: the limit is 64.0 MiB\n");
  check_contains(other, "  advice      " + std::string(90, 'x') + "\n              is one word\n");
  check_contains(other, "(local rank 0, pid 1): succeeded\n");
  report.cause->memory_limit_bytes = 0;
  check_contains(to_text(report), "  memory      ran out: the kernel killed it\n");
}

TEST_CASE("a job that succeeded has a report without a cause", "[launcher][failure_report]") {
  const FailureReport report{.run_id = "job",
                             .node_rank = 0,
                             .ended_s = 1'700'000'000,
                             .program = "train",
                             .why = "all workers succeeded",
                             .local_workers = {{.rank = 0, .pid = 1}}};

  const auto json = nlohmann::json::parse(to_json(report));

  CHECK(json["version"] == 1);
  CHECK(json["exit_status"] == 0);
  CHECK(json["run_id"] == "job");
  CHECK(json["why"] == "");
  CHECK(json["ended_s"] == 1'700'000'000);
  CHECK_FALSE(json.contains("first_cause"));
  CHECK(json["workers"].size() == 1);
}

TEST_CASE("what the message says is not said again from stderr", "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.cause->message = "ValueError: no\nTraceback (most recent call last):\n  File \"a\"";
  report.cause->last_stderr =
      "epoch 7\n[rank3]: Traceback (most recent call last):\n[rank3]:   File \"a\"\n"
      "[rank3]: ValueError: no\nbye";

  check_contains(to_text(report), "    epoch 7\n    [the message above]\n    bye\n");

  report.cause->last_stderr = "Traceback (most recent call last):\n  File \"a\"\nValueError: no";
  CHECK(to_text(report).find("last lines of its stderr") == std::string::npos);
  // Between the tracebacks of a chain.
  report.cause->last_stderr =
      "epoch 7\n[rank3]:   File \"a\"\n[rank3]: \n[rank3]: ValueError: no\n\nbye";
  check_contains(to_text(report), "    epoch 7\n    [the message above]\n    bye\n");

  report.cause->message = "no";  // As an error file has it.
  report.cause->last_stderr = "[rank3]: ValueError: no";
  CHECK(to_text(report).find("last lines of its stderr") == std::string::npos);
  report.cause->last_stderr = "[rank 3 says no\nworker 2: no\n";  // No name of a program.
  check_contains(to_text(report), "    [rank 3 says no\n    worker 2: no\n");
}

TEST_CASE("the report of a launcher that is a worker is not told twice",
          "[launcher][failure_report]") {
  FailureReport inner = segfault_on_node1();
  inner.cause->last_stderr = "the inner worker's words";
  FailureReport outer = segfault_on_node1();
  outer.cause->message = error_file_message(to_error_file(inner));
  outer.cause->last_stderr = "epoch 7\n" + to_text(inner) + "\nbye\n";

  const std::string text = to_text(outer);

  check_contains(text, "    epoch 7\n    [the message above]\n    bye\n");
  CHECK(text.find("the inner worker's words") == std::string::npos);
  // Of another failure, which it has survived.
  outer.cause->message = "ValueError: no";
  check_contains(to_text(outer), "the inner worker's words");
}

TEST_CASE("frames around what torch's @record records are not taken for other words",
          "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.cause->message =
      "ValueError: no\nTraceback (most recent call last):\n  File \"record\"\n    f()\n"
      "ValueError: no";
  const std::string outer = "[rank3]: Traceback (most recent call last):\n[rank3]:   File \"a\"\n";

  report.cause->last_stderr = "epoch 7\n" + outer +
                              "[rank3]:     main()\n[rank3]:   File \"record\"\n"
                              "[rank3]:     f()\n[rank3]: ValueError: no\nbye";
  check_contains(to_text(report), "    epoch 7\n    [the message above]\n    bye\n");
  // Another one's.
  report.cause->last_stderr = outer + "[rank3]: KeyError: 1";
  check_contains(to_text(report), "File \"a\"\n    [rank3]: KeyError: 1\n");
}

TEST_CASE("what a long message has left out of its middle is not taken for other words",
          "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.cause->message =
      "ValueError: no\nTraceback (most recent call last):\n  File \"a\"\n    a()\n  [...]\n"
      "  File \"d\"\n    d()";
  const std::string middle = "[rank3]:   File \"b\"\n[rank3]:     b()\n";
  const std::string end = "[rank3]:   File \"d\"\n[rank3]:     d()\n[rank3]: ValueError: no\nbye";

  report.cause->last_stderr = "epoch 7\n" + middle + end;  // Its beginning is not kept.
  check_contains(to_text(report), "    epoch 7\n    [the message above]\n    bye\n");
  report.cause->last_stderr = middle + end;
  check_contains(to_text(report), "stderr\n    [the message above]\n    bye\n");
  // Of another traceback, which it had survived.
  const std::string first = "Traceback (most recent call last):\n  File \"x\"\nKeyError: 1\n";
  report.cause->last_stderr = first +
                              "[rank3]: Traceback (most recent call last):\n[rank3]:   File \"a\"\n"
                              "[rank3]:     a()\n" +
                              middle + end;
  check_contains(to_text(report), "    File \"x\"\n    KeyError: 1\n    [the message above]\n");
}

TEST_CASE("17.1: a worker's own name before its words does not make them others",
          "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.cause->message = "rank 3: the loss is nan";
  report.cause->last_stderr = "epoch 1\ntrain: rank 3: the loss is nan";
  report.local_workers[0].message = "rank 0: the loss is nan";
  std::string text = to_text(report);

  check_contains(text, "  message\n    the loss is nan\n");
  check_contains(text, "    epoch 1\n    [the message above]\n");
  check_contains(text, "(killed by SIGTERM (signal 15)): the same message\n");
  CHECK(tells_all(report));

  report.cause->message = "no such folder";  // Without its rank, which stderr has.
  report.cause->last_stderr = "train: rank 3: no such folder\n";
  text = to_text(report);
  CHECK(text.find("last lines of its stderr") == std::string::npos);
  report.cause->last_stderr = "train: rank 2: no such folder\n";
  check_contains(to_text(report), "    train: rank 2: no such folder\n");
  report.local_workers[0].message = "one line\nand another";
  CHECK_FALSE(tells_all(report));
}

TEST_CASE("a report tells all that workers said, or names where the rest is",
          "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  CHECK(tells_all(report));
  report.local_workers[0].message = "one line";
  CHECK(tells_all(report));
  SECTION("of another one only the first line is shown") {
    report.local_workers[0].message = "one line\nand another";
    CHECK_FALSE(tells_all(report));
  }
  SECTION("of many others not all are listed") {
    report.local_workers.resize(7, {.rank = 9, .pid = 1});
    CHECK_FALSE(tells_all(report));
  }
  SECTION("a long message is cut") {
    for (int line = 0; line < 17; ++line) report.cause->message += "\nline";
    CHECK(tells_all(report));
    report.cause->message += "\nline";
    CHECK_FALSE(tells_all(report));
    check_contains(to_text(report), "  [... 2 lines ...]\n");
  }
  SECTION("the cause's own is shown above") {
    report.local_workers.push_back({.rank = 3, .pid = 4127, .message = "other\nwords"});
    CHECK(tells_all(report));
  }
  SECTION("where nobody is to blame there is nothing to look for") {
    report.cause.reset();
    CHECK_FALSE(tells_all(report));
  }
}

TEST_CASE("17.1: a worker that refuses its options is told without a report",
          "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  CHECK(usage_text(report).empty());
  report.cause->signal = 0;
  report.cause->exit_code = 2;
  report.cause->message = "rank 3: unknown option --x\x1b";
  CHECK(usage_text(report) == "unknown option --x^[");
  report.cause->last_stderr = "usage: x\nrank 3: unknown option --x\x1b\n";  // It was seen.
  CHECK(usage_text(report).empty());
  report.cause->message = "";  // Any program may end with 2, and its stderr says why.
  CHECK(usage_text(report).empty());
  report.cause->message = "unknown option --x";
  report.cause->last_stderr.clear();
  CHECK_FALSE(usage_text(report).empty());
  FailureReport other = report;
  other.cause->exit_code = 3;
  CHECK(usage_text(other).empty());
  other = report;
  other.cause->signal = SIGSEGV;
  CHECK(usage_text(other).empty());
  other = report;
  other.cause->kind = FirstCause::Kind::StartFailed;
  CHECK(usage_text(other).empty());
  other.cause.reset();
  CHECK(usage_text(other).empty());
}

TEST_CASE("the report is one screen, however much there is to say", "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.cause->message = "Error: x\n";
  for (int i = 0; i < 200; ++i) report.cause->message += "frame " + std::to_string(i) + "\n";
  for (int i = 0; i < 20; ++i) report.cause->last_stderr += "line " + std::to_string(i) + "\n";
  report.cause->advice = std::string(300, 'x');
  report.cause->log_files = "/a\n/b";
  report.log_dir = "/c";
  report.local_workers.assign(64, {.rank = 0, .pid = 1, .signal = SIGTERM, .stopped_by_us = true});

  const std::string text = to_text(report);

  CHECK(std::count(text.begin(), text.end(), '\n') < 55);
  check_contains(text, "    Error: x\n    frame 0\n");
  check_contains(text, "    frame 199\n");
  check_contains(text, "    line 19\n");
}

TEST_CASE("the last twenty lines of stderr are shown when there is no message",
          "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  report.cause->message = "";
  report.cause->last_stderr = "first";
  for (int i = 2; i <= 20; ++i) report.cause->last_stderr += "\nline " + std::to_string(i);

  check_contains(to_text(report), "  last lines of its stderr\n    first\n    line 2\n");
  check_contains(to_text(report), "    line 20\n");
}

TEST_CASE("a C++ stack is made readable", "[launcher][failure_report]") {
  CHECK(readable_stack("/bin/train(_ZN6ddprun4stepEi+0x1f) [0x55d0c1e3a01f]\n"
                       "/bin/train(main+0x2)[0x55d0c1e3a002]\n"
                       "/bin/train(+0x1234) [0x55d0c1e3a234]\n"
                       "/lib/libc.so.6(+0x3c050) [0x7f0000]\n"
                       "/usr/lib/[vdso] [0x7ff]\nno stack line (+0x1) [0x]\n\nend") ==
        "ddprun::step(int)+0x1f in train\n"
        "main+0x2 in train\n"
        "/bin/train(+0x1234)\n"
        "/lib/libc.so.6(+0x3c050)\n"
        "/usr/lib/[vdso] [0x7ff]\nno stack line (+0x1) [0x]\n\nend");
  CHECK(readable_stack("") == "");
}

TEST_CASE("a function of C that is called as a type is, keeps its name",
          "[launcher][failure_report]") {
  CHECK(readable_stack("a.out(f+0x1) [0x2]") == "f+0x1 in a.out");
}

TEST_CASE("a name that stands for a thousand times its length is left as it is",
          "[launcher][failure_report]") {
  // f(int, int, ...): each parameter is a pointer to a member of the one before, of its type.
  std::string name = "_Z1fMii";
  std::size_t line_bytes_max = 0;
  for (const char* last : {"S_",  "S0_", "S1_", "S2_", "S3_", "S4_", "S5_", "S6_", "S7_", "S8_",
                           "S9_", "SA_", "SB_", "SC_", "SD_", "SE_", "SF_", "SG_", "SH_", "SI_"}) {
    name += std::string("M") + last + last;
    const std::string line = readable_stack("train(" + name + "+0x1) [0x2]");
    line_bytes_max = std::max(line_bytes_max, line.size());
  }
  CHECK(line_bytes_max > name.size());  // Of the shorter ones: they are made readable.
  CHECK(line_bytes_max < 100'000);
}

TEST_CASE("names in a worker's error file are readable in the report",
          "[launcher][failure_report]") {
  const std::string content =
      R"({"message": {"message": "SIGSEGV", "extraInfo": {"py_callstack": "train(_ZN1a1bEv+0x1) [0x2]\n"}}})";

  CHECK(error_file_message(content) == "SIGSEGV\na::b()+0x1 in train");
}

TEST_CASE("nesting without end does not exhaust the stack", "[launcher][failure_report]") {
  for (const std::string open : {"[", "{\"message\":", "{\"message\":[{\"extraInfo\":"}) {
    std::string deep;
    while (deep.size() < (1 << 20)) deep += open;
    CHECK(error_file_message(deep).size() < 2'100);
  }
  const std::string arrays =
      "{\"message\":" + std::string(500'000, '[') + std::string(500'000, ']') + "}";
  CHECK(error_file_message(arrays).size() < 2'100);
}

TEST_CASE("random and truncated error files never throw", "[launcher][failure_report][fuzz]") {
  const std::string good =
      R"({"message": {"message": "E: \u00e9 \ud83d\ude00", "errorCode": 7, "extraInfo": {"py_callstack": "a(b+0x1) [0x2]\n", "timestamp": "1"}}, "x": [1.5e3, null, true]})";
  for (std::size_t size = 0; size <= good.size(); ++size) error_file_message(good.substr(0, size));
  std::mt19937 random(7);
  std::size_t said = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = good;
    for (int edit = 0; edit < 4; ++edit) {
      const std::size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text[at] = static_cast<char>(random());
      } else {
        text.insert(at, 1, "{}[]\",:\\u0"[random() % 10]);
      }
    }
    said += error_file_message(text).size();
  }
  CHECK(said > 0);
}

TEST_CASE("17.2: a report says who stood still for how long, and has the stacks of all ranks",
          "[launcher][failure_report]") {
  FailureReport report = segfault_on_node1();
  CHECK_FALSE(nlohmann::json::parse(to_json(report)).contains("stalls"));
  report.cause->signal = SIGKILL;
  report.cause->hung_ms = 61'250;
  report.stalls.push_back({.attempt = 2,
                           .behind = {3},
                           .why = "rank 3 has said nothing",
                           .stacks = "rank 3\n    in futex\xff\n",
                           .job_stacks = "node 0 on host-a: ranks 0-1",
                           .nccl_ras = "rank 3 is missing"});
  const auto json = nlohmann::json::parse(to_json(report));
  CHECK(json["stalls"][0]["behind"] == std::vector<int>{3});
  CHECK(json["stalls"][0]["job_stacks"] == "node 0 on host-a: ranks 0-1");
  CHECK(json["stalls"][0]["nccl_ras"] == "rank 3 is missing");
  CHECK(json["first_cause"]["hung_ms"] == 61'250);
  check_contains(to_text(report),
                 "rank 3 (pid 4127 on host-b) stood still for 61 s, and was killed after 12 s");
}
