// The failure report of real jobs: workers that die in many ways, and what is said of them.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::testing;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

std::ptrdiff_t files_in(const std::string& folder) {
  return std::distance(fs::directory_iterator(folder), {});
}

std::vector<std::string> dying(const std::string& how) { return {binary("dying_worker"), how}; }

// A job of one worker, and its report.
struct Job {
  ProcessResult result;
  json report;
  json cause() const { return report.value("first_cause", json::object()); }
  std::string message() const { return cause().value("message", ""); }
  std::string advice() const { return cause().value("advice", ""); }
};

Job run_job(const std::vector<std::string>& program, const std::vector<std::string>& options = {}) {
  const TemporaryFolder folder;
  const std::string path = folder / "report.json";
  Job job;
  job.result = run(launch({"--standalone", "--report", path}) + options + program, 30s);
  job.report = json::parse(content_of(path), nullptr, /*allow_exceptions=*/false);
  return job;
}

// Python's own messages; "" when there is no Python.
const std::string python = "/usr/bin/python3";
Job run_python(const std::string& code) { return run_job({python, "-c", code}); }

// What Gloo says of a peer that does not come.
const std::string waited_in_vain =
    "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete";

// Of two workers one halts itself, and the other does what follows once that can be seen.
std::string halts(const std::string& pid_file) {
  return read_pid + "echo $pid > " + pid_file + ".new; mv " + pid_file + ".new " + pid_file +
         "; kill -STOP $pid; ";
}
std::string fails_beside_halted(const std::string& pid_file) {
  return "until test -s " + pid_file + " && grep -q ') T ' /proc/$(cat " + pid_file +
         ")/stat; do sleep 0.01; done; ";
}

// A memory cgroup of version 1 or 2 for one test, below the one this process is in.
class MemoryLimit {
 public:
  explicit MemoryLimit(long bytes) {
    std::string own;
    std::ifstream file("/proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {
      const auto at = line.find(":memory:");
      if (at != line.npos) own = "/sys/fs/cgroup/memory" + line.substr(at + 8);
      if (line.rfind("0::", 0) == 0 && own.empty()) second_ = "/sys/fs/cgroup" + line.substr(3);
    }
    version_2_ = own.empty();
    folder_ = (version_2_ ? second_ : own) + "/ddprun-test-" + std::to_string(::getpid());
    std::error_code error;
    if (!fs::create_directory(folder_, error)) {
      why_not_ = "cannot make a cgroup: " + error.message();
      folder_.clear();
    } else if (!write(version_2_ ? "memory.max" : "memory.limit_in_bytes", std::to_string(bytes))) {
      why_not_ = "cannot limit the memory of a cgroup";
    }
    // No swap, where there is any: the limit has to be felt.
    write(version_2_ ? "memory.swap.max" : "memory.swappiness", "0");
  }
  ~MemoryLimit() {
    if (!folder_.empty()) ::rmdir(folder_.c_str());
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  const std::string& why_not() const { return why_not_; }
  const std::string& folder() const { return folder_; }

 private:
  bool write(const std::string& name, const std::string& text) const {
    const int fd = ::open((folder_ + "/" + name).c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const bool done = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::close(fd);
    return done;
  }

  std::string second_;
  std::string folder_;
  std::string why_not_;
  bool version_2_ = false;
};

}  // namespace

TEST_CASE("17.3: --exit-code-map changes what ddprun ends with, in the report, too") {
  const TemporaryFolder folder;
  const auto job = [&](const std::string& code) {
    return run(
        launch({"--exit-code-map", "preempted=138,lost=139", "--report", folder / "report"}) +
            shell("exit " + code),
        40s);
  };
  CHECK(job("75").status == 138);
  CHECK(contains(content_of(folder / "report"), "\"exit_status\": 138"));
  CHECK(job("74").status == 74);  // The worker's own.
  const auto unknown = run(launch({"--exit-code-map", "gone=1"}) + shell("true"), 40s);
  CHECK(unknown.status == 2);
  CHECK(contains(unknown.output, "coordinator, refused, lost"));
}

TEST_CASE("the report is there after a success, too") {
  const Job job = run_job(shell("exit 0"), {"--nproc-per-node", "2"});

  CHECK(job.result.status == 0);
  CHECK(job.report["exit_status"] == 0);
  CHECK(job.report["workers"].size() == 2);
  CHECK_FALSE(job.report.contains("first_cause"));
}

TEST_CASE("the report says where log files were kept, however the job ended") {
  const TemporaryFolder logs;
  const std::vector<std::string> kept = {"--log-dir", logs.path(), "--tee", "3"};
  const auto is_kept = [](const Job& job) {
    INFO(job.result.output);
    const std::string folder = job.report.value("log_dir", "");
    CHECK(fs::is_regular_file(folder + "/attempt_0/0/stdout.log"));
    return job.result.status;
  };

  CHECK(is_kept(run_job(shell("true"), kept)) == 0);
  CHECK(is_kept(run_job(shell("exit 75"), kept)) == 75);
  CHECK(is_kept(run_job(shell("exit 3"), kept)) == 3);
  CHECK(is_kept(run_job(shell("test $TORCHELASTIC_RESTART_COUNT = 1"),
                        kept + std::vector<std::string>{"--max-restarts", "1"})) == 0);
  // Where none stay, none are named.
  CHECK(run_job(shell("true")).report["log_dir"] == "");
}

// Shell commands of workers: `record MESSAGE` writes an error file as torch's @record does;
// `wait_for_error_of RANK` waits until that one has, and until the file system's clock has ticked.
const std::string recording =
    "record() { printf '{\"message\": {\"message\": \"%s\", \"extraInfo\": {\"py_callstack\": "
    "\"%s\", "
    "\"timestamp\": \"%s\"}}}' \"$1\" \"$1\" \"$(date +%s)\" > \"$TORCHELASTIC_ERROR_FILE.new\"; "
    "mv \"$TORCHELASTIC_ERROR_FILE.new\" \"$TORCHELASTIC_ERROR_FILE\"; }; "
    "wait_for_error_of() { other=\"${TORCHELASTIC_ERROR_FILE%/*/*}/$1/error.json\"; "
    "until test \"$TORCHELASTIC_ERROR_FILE.tick\" -nt \"$other\" && test -e \"$other\"; "
    "do sleep 0.01; touch \"$TORCHELASTIC_ERROR_FILE.tick\"; done; }; ";

TEST_CASE("14.2: who recorded an error first is blamed, not who ended first") {
  const Job job = run_job(
      shell(recording + "if [ $RANK = 0 ]; then record 'KeyError: labels'; exec sleep 300; fi; "
                        "wait_for_error_of 0; record 'ConnectionResetError: by peer'; exit 3"),
      {"--nproc-per-node", "2"});

  INFO(job.result.output);
  CHECK(job.result.status == 3);  // Of the first process that ended.
  CHECK(job.cause()["rank"] == 0);
  CHECK(job.message() == "KeyError: labels");
  CHECK(contains(job.result.output, "FAILED: rank 0 (pid "));
  CHECK(contains(job.result.output,
                 "failed too, later (exit code 3): ConnectionResetError: by peer\n"));
  CHECK(job.report["workers"][0]["message"] == "ConnectionResetError: by peer");
}

TEST_CASE("14.2: a worker that dies first is blamed although a peer tells of its death at once") {
  const Job job =
      run_job(shell(recording +
                    "if [ $RANK = 0 ]; then record 'ValueError: mine'; exit 4; fi; "
                    "wait_for_error_of 0; record 'ConnectionResetError: by peer'; exec sleep 300"),
              {"--nproc-per-node", "2"});

  INFO(job.result.output);
  CHECK(job.result.status == 4);
  CHECK(job.cause()["rank"] == 0);
  CHECK(job.message() == "ValueError: mine");
}

TEST_CASE("14.2: who loses a peer is not blamed before that one has left its finally") {
  const bool records = GENERATE(true, false);
  const bool peer_records = GENERATE(true, false);
  const TemporaryFolder folder;
  const std::string pid_file = folder / "pid";
  const std::string loses_peer = read_pid + "echo $pid > " + pid_file + ".new; mv " + pid_file +
                                 ".new " + pid_file + (peer_records ? "; record " : "; echo ") +
                                 "'RuntimeError: Connection closed by peer' >&2; exit 3; ";
  // There to be signalled until the launcher has reaped it: then its death has been noticed.
  const std::string in_finally = "until test -s " + pid_file +
                                 "; do sleep 0.01; done; while kill -0 $(cat " + pid_file +
                                 ") 2> /dev/null; do sleep 0.01; done; ";
  const std::string ends =
      records ? "record 'KeyError: labels'; exec sleep 300" : "echo 'KeyError: labels' >&2; exit 4";
  const Job job = run_job(
      shell(recording + "if [ $RANK = 1 ]; then " + loses_peer + "fi; " + in_finally + ends),
      {"--nproc-per-node", "2"});

  INFO(job.result.output);
  CHECK(job.cause()["rank"] == 0);
  CHECK(job.result.status == (records ? 3 : 4));  // Of the first that had ended, of those to blame.
  CHECK(contains(job.result.output, "KeyError: labels"));
  CHECK(contains(job.result.output, "failed too (exit code 3): RuntimeError: Connection closed"));
}

TEST_CASE("who lost a peer that had ended with 0 is told which one that was") {
  const std::string says = GENERATE("record", "echo");
  const std::string words =
      GENERATE(std::string("RuntimeError: Connection closed by peer"), waited_in_vain);
  const TemporaryFolder folder;
  const std::string pid_file = folder / "pid";
  const std::string leaves = read_pid + "echo $pid > " + pid_file + ".new; mv " + pid_file +
                             ".new " + pid_file + "; exit 0; ";
  const std::string lost =
      "until test -s " + pid_file + "; do sleep 0.01; done; while kill -0 $(cat " + pid_file +
      ") 2> /dev/null; do sleep 0.01; done; " + says + " '" + words + "' >&2; exit 3";
  const Job job = run_job(shell(recording + "if [ $RANK = 1 ]; then " + leaves + "fi; " + lost),
                          {"--nproc-per-node", "2"});

  INFO(job.result.output);
  CHECK(job.result.status == 3);
  CHECK(job.cause()["rank"] == 0);
  CHECK(job.advice().find("rank 1 had ended with exit code 0, as if all were done, ") == 0);
}

TEST_CASE("who loses a peer of another node is not blamed for that one's error") {
  const TemporaryFolder folder;
  const std::uint16_t port = free_port();
  const std::string recorded = folder / "recorded";
  const auto program =
      shell(recording + "if [ $RANK = 1 ]; then record 'KeyError: labels'; touch " + recorded +
            "; exec sleep 300; fi; until test -e " + recorded +
            "; do sleep 0.01; done; record 'RuntimeError: Connection closed by peer'; exit 3");
  Process host(launch_node(0, port, {}, program));
  Process other(launch_node(1, port, {}, program));
  for (Process* node : {&host, &other}) {
    const ProcessResult result = node->wait(60s);
    INFO(result.output);
    CHECK(result.status == 3);  // Of the first process that ended.
    CHECK(contains(result.output, "FAILED: rank 1 (pid "));
    CHECK(contains(result.output, "KeyError: labels"));
    CHECK(contains(result.output, "rank 0 (pid "));
  }
}

TEST_CASE("a node whose ranks lost a peer waits for that one's error from another node") {
  const TemporaryFolder folder;
  const std::uint16_t port = free_port();
  const std::string waits = folder / "waits";
  const auto program = shell(recording +
                             "if [ $RANK = 0 ]; then record 'RuntimeError: Connection "
                             "closed by peer'; exit 3; fi; until test -e " +
                             waits + "; do sleep 0.01; done; record 'KeyError: labels'; exit 4");
  Process host(launch_node(0, port, {}, program));
  Process other(launch_node(1, port, {}, program));
  CHECK(host.wait_for_output("rank 0 failed of a lost peer; for up to 5 s", 60s));
  std::ofstream{waits};
  for (Process* node : {&host, &other}) {
    const ProcessResult result = node->wait(60s);
    INFO(result.output);
    CHECK(result.status == 4);
    CHECK(contains(result.output, "FAILED: rank 1 (pid "));
    CHECK(contains(result.output, "KeyError: labels"));
    CHECK_FALSE(contains(result.output, "FAILED: rank 0"));
  }
}

TEST_CASE("a worker that stands halted is blamed where a peer has waited for it in vain") {
  const bool waits = GENERATE(true, false);
  const bool records = GENERATE(true, false);
  const TemporaryFolder folder;
  const std::string fails = std::string(records ? "record" : "echo") + " '" +
                            (waits ? waited_in_vain : "KeyError: labels") + "' >&2; exit 3";
  const Job job = run_job(shell(recording + "if [ $RANK = 1 ]; then " + halts(folder / "pid") +
                                "exit 4; fi; " + fails_beside_halted(folder / "pid") + fails),
                          {"--nproc-per-node", "2"});

  INFO(job.result.output);
  CHECK(job.result.status == 3);  // Of the first that ended.
  CHECK(job.cause()["rank"] == (waits ? 1 : 0));
  if (!waits) return;
  CHECK(contains(job.result.output, "FAILED: rank 1 (pid "));
  CHECK(contains(job.result.output, " was halted by a signal, as was seen after "));
  CHECK(contains(job.message(), "rank 1 was halted by a signal (state T), and took no part"));
  CHECK(contains(job.cause()["ended_first"], "rank 0 (pid "));
  CHECK(contains(job.result.output, waited_in_vain));
  CHECK(contains(job.advice(), "SIGSTOP"));
}

TEST_CASE("a worker that stands halted is blamed for what a peer of another node has waited for") {
  const TemporaryFolder folder;
  const std::uint16_t port = free_port();
  // Another host's clock and pids are never compared: what one of them sees is all there is.
  const int halted = GENERATE(0, 1);
  const auto program =
      shell(recording + "if [ $RANK = " + std::to_string(halted) + " ]; then " +
            halts(folder / "pid") + "exit 4; fi; " + fails_beside_halted(folder / "pid") +
            "echo '" + waited_in_vain + "' >&2; exit 3");
  Process host(launch_node(0, port, {}, program));
  Process other(launch_node(1, port, {}, program));
  for (Process* node : {&host, &other}) {
    const ProcessResult result = node->wait(60s);
    INFO(result.output);
    CHECK(result.status == 3);
    CHECK(contains(result.output, "FAILED: rank " + std::to_string(halted) + " (pid "));
    CHECK(contains(result.output, " was halted by a signal, as was seen after "));
  }
}

TEST_CASE("an exception that does not get to its process's end is the cause of who waits for it") {
  const std::string words =
      GENERATE(std::string("RuntimeError: Connection closed by peer"), waited_in_vain);
  const bool one_node = GENERATE(true, false);
  const TemporaryFolder folder;
  const std::string said = folder / "said";
  // As torch writes it, and then the interpreter waits for a child.
  const std::string raises =
      "printf '[rank1]: Traceback (most recent call last):\\n[rank1]:   File \"a.py\", line 3\\n"
      "[rank1]: KeyError: labels\\n' >&2; touch " +
      said + "; exec sleep 300; ";
  const auto program = shell("if [ $RANK = 1 ]; then " + raises + "fi; until test -e " + said +
                             "; do sleep 0.01; done; echo '" + words + "' >&2; exit 3");
  std::string output;
  if (one_node) {
    const Job job = run_job(program, {"--nproc-per-node", "2"});
    output = job.result.output;
    CHECK(job.cause()["rank"] == 1);
    CHECK(job.message().rfind("KeyError: labels\nTraceback (most recent call last):", 0) == 0);
    CHECK(contains(job.advice(), "its process did not end"));
    CHECK_FALSE(contains(output, "waits for that one's error"));
    CHECK(job.result.status == 3);
  } else {
    const std::uint16_t port = free_port();
    Process host(launch_node(0, port, {}, program));
    Process other(launch_node(1, port, {}, program));
    output = host.wait(60s).output + other.wait(60s).output;
  }
  INFO(output);
  CHECK(contains(output, "FAILED: rank 1 (pid "));
  CHECK_FALSE(contains(output, "FAILED: rank 0 (pid "));
  CHECK(contains(output, "KeyError: labels"));
}

TEST_CASE("of workers that stand alike, the one that an exception has ended is behind") {
  const std::string rank = GENERATE(std::string(""), std::string("[rank1]: "));
  const auto program = shell(
      "if [ $RANK = 1 ]; then printf '" + rank + "Traceback (most recent call last):\\n" + rank +
      "  File \"a.py\", line 3\\n" + rank + "KeyError: labels\\n' >&2; fi; exec sleep 300");
  const Job job =
      run_job(program, {"--nproc-per-node", "2", "--stall-timeout", "0.5", "--on-stall", "fail"});
  INFO(job.result.output);
  CHECK(job.cause()["rank"] == 1);
  CHECK(contains(job.message(), "after the traceback of KeyError: labels"));
  CHECK_FALSE(contains(job.result.output, "rank 0 counts as lost"));
}

TEST_CASE("14.4: the launcher's own error file is the culprit's, with its exit code") {
  const TemporaryFolder folder;
  const auto job =
      launch({"--standalone"}) + shell(recording + "record 'KeyError: labels'; exit 3");

  const ProcessResult result = run(job, 30s, {{"TORCHELASTIC_ERROR_FILE", folder / "error.json"}});

  INFO(result.output);
  CHECK(result.status == 3);
  const json message = json::parse(content_of(folder / "error.json"))["message"];
  CHECK(message["message"] == "KeyError: labels");
  CHECK(message["errorCode"] == 3);
}

TEST_CASE("14.4: a pipe in place of the error file holds nobody up") {
  const Job job = run_job(shell("mkfifo \"$TORCHELASTIC_ERROR_FILE\"; echo said >&2; exit 5"));

  INFO(job.result.output);
  CHECK(job.result.status == 5);
  CHECK(job.cause()["last_stderr"] == "said");
}

TEST_CASE("14.5: a worker that changes its folder finds the files of a relative --log-dir") {
  const TemporaryFolder folder;
  std::ofstream(folder / "worker") << "cd /\necho out\n"
                                   << R"(printf '{"message": "my words"}' > )"
                                   << "\"$TORCHELASTIC_ERROR_FILE\"\nexit 3\n";
  const auto result =
      run(shell("cd " + folder.path() + " && exec " + binary("ddprun") +
                " --standalone --log-dir logs --redirects 3 --report report sh worker"),
          30s);

  INFO(result.output);
  CHECK(result.status == 3);
  const json report = json::parse(content_of(folder / "report"), nullptr, false);
  REQUIRE(report.is_object());
  CHECK(report["first_cause"]["message"] == "my words");
  int logs = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder / "logs")) {
    logs += entry.path().filename() == "stdout.log" && content_of(entry.path()) == "out\n";
  }
  CHECK(logs == 1);
}

TEST_CASE("14.3: a run's folder that is gone costs no restart") {
  const Job job = run_job(shell("test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0; "
                                "rm -r \"${TORCHELASTIC_ERROR_FILE%/*/*/*}\"; exit 1"),
                          {"--max-restarts", "1"});

  INFO(job.result.output);
  CHECK(job.result.status == 0);
}

TEST_CASE("the report of a failure names cause, stopped siblings and logs") {
  const TemporaryFolder folder;
  const Job job =
      run_job(shell("if [ $RANK = 1 ]; then echo 'disk on fire' >&2; exit 7; fi; exec sleep 300"),
              {"--nproc-per-node", "2", "--tee", "3", "--log-dir", folder / "logs"});

  INFO(job.result.output);
  CHECK(job.result.status == 7);
  CHECK(job.report["exit_status"] == 7);
  CHECK(job.cause()["rank"] == 1);
  CHECK(job.cause()["exit_code"] == 7);
  CHECK(job.cause()["last_stderr"] == "disk on fire");
  REQUIRE(job.cause()["log_files"].size() == 2);
  CHECK(content_of(job.cause()["log_files"][1]) == "disk on fire\n");
  REQUIRE(job.report["workers"].size() == 2);
  CHECK(job.report["workers"][0]["stopped"] == false);
  CHECK(job.report["workers"][1]["stopped"] == true);
  CHECK(contains(job.result.output, "stopped (killed by SIGTERM"));
  CHECK_FALSE(contains(job.result.output, "failed too"));
}

TEST_CASE("a job that is interrupted leaves its report") {
  const TemporaryFolder folder;
  const std::string path = folder / "report.json";
  Process job(launch({"--standalone", "--report", path, "--log-dir", folder.path(), "--tee", "3"}) +
              shell("echo up; exec sleep 300"));
  REQUIRE(job.wait_for_output("up", 20s));

  job.send_signal(SIGTERM);

  CHECK(job.wait(20s).status == 75);
  const json report = json::parse(content_of(path));
  CHECK(report["exit_status"] == 75);
  CHECK(contains(content_of(report.value("log_dir", "") + "/attempt_0/0/stdout.log"), "up"));
}

TEST_CASE("both nodes of a job write the same cause") {
  const TemporaryFolder folder;
  const auto port = free_port();
  const auto program = shell("if [ $RANK = 1 ]; then exit 3; fi; exec sleep 300");
  Process other(launch_node(1, port, {"--report", folder / "1.json"}, program));
  Process host(launch_node(0, port, {"--report", folder / "0.json"}, program));

  CHECK(host.wait(30s).status == 3);
  CHECK(other.wait(30s).status == 3);

  const json first = json::parse(content_of(folder / "0.json"));
  const json second = json::parse(content_of(folder / "1.json"));
  CHECK(first["first_cause"] == second["first_cause"]);
  CHECK(first["first_cause"]["rank"] == 1);
  CHECK(first["node_rank"] == 0);
  CHECK(second["node_rank"] == 1);
  CHECK(files_in(folder.path()) == 2);
}

TEST_CASE("two nodes that write the same report leave a whole one") {
  const TemporaryFolder folder;
  const std::string path = folder / "report.json";
  const auto port = free_port();
  Process other(launch_node(1, port, {"--report", path}, shell("exit 0")));
  Process host(launch_node(0, port, {"--report", path}, shell("exit 0")));

  CHECK(host.wait(30s).status == 0);
  CHECK(other.wait(30s).status == 0);

  CHECK(json::parse(content_of(path))["exit_status"] == 0);
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("a report that cannot be written is refused before the start") {
  const auto result = run(launch({"--report", "/nonexistent/report.json"}) + shell("echo up"), 20s);

  CHECK(result.status == 2);
  CHECK(contains(result.output, "there is no folder /nonexistent"));
  CHECK_FALSE(contains(result.output, "up\n"));
}

TEST_CASE("a report whose folder has gone is a warning, not another failure") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "gone");
  const auto result = run(launch({"--standalone", "--report", folder / "gone/report.json"}) +
                              shell("rmdir " + (folder / "gone")),
                          20s);

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "cannot write the report"));
}

TEST_CASE("a segmentation fault names the function it happened in") {
  const Job job = run_job(dying("segfault"));

  INFO(job.result.output);
  CHECK(job.result.status == 128 + SIGSEGV);
  const std::string crashed = "dying::write_through_dangling_pointer(int volatile*)+0x";
  CHECK(job.message().rfind("SIGSEGV: invalid memory access\n", 0) == 0);
  CHECK(contains(job.message(), crashed));
#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // These have frames of their own.
  CHECK(contains(job.message(), "access\n" + crashed));
#endif
  CHECK(contains(job.message(), "main+0x"));
  CHECK(contains(job.result.output, "dying::write_through_dangling_pointer(int volatile*)"));
}

TEST_CASE("an uncaught exception comes with the function that threw it") {
  const Job job = run_job(dying("throw"));

  INFO(job.result.output);
  CHECK(job.message().rfind("std::out_of_range: batch 12 of 10\n", 0) == 0);
  CHECK(contains(job.message(), "dying::read_batch()+0x"));
  CHECK_FALSE(contains(job.result.output, "SIGABRT: abort() was called"));
}

TEST_CASE("an uncaught exception of a program that knows nothing of us is found on stderr") {
  const Job job = run_job(dying("bare_throw"));

  INFO(job.result.output);
  CHECK(job.result.status == 128 + SIGABRT);
  CHECK(job.message() == "std::out_of_range: batch 12 of 10");
}

TEST_CASE("a failed assert is the message") {
  CHECK(contains(run_job(dying("bare_abort")).message(),
                 "Assertion `how == \"this cannot be\"' failed."));
}

TEST_CASE("a Python traceback is the message, without an error file") {
  if (!fs::exists(python)) DDPRUN_SKIP("no " + python);
  const Job job = run_python("def step():\n  raise ValueError('no such model')\nstep()");

  INFO(job.result.output);
  CHECK(job.result.status == 1);
  CHECK(job.message().rfind("ValueError: no such model\nTraceback (most recent call last):", 0) ==
        0);
  CHECK(contains(job.message(), "in step"));
  CHECK(job.advice() == "");
}

TEST_CASE("real failures of Python programs get their advice") {
  if (!fs::exists(python)) DDPRUN_SKIP("no " + python);
  const auto advice = [](const std::string& code) { return run_python(code).advice(); };

  CHECK(contains(advice("import socket as s; a = s.socket(); a.bind(('127.0.0.1', 0)); a.listen()\n"
                        "s.socket().bind(a.getsockname())"),
                 "a port is in use"));
  CHECK(contains(advice("import no_such_module_at_all"), "Python module is missing"));
  CHECK(contains(advice("import ctypes; ctypes.CDLL('libnothing.so.9')"),
                 "shared library is missing"));
  CHECK(contains(advice("import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (9, 9))\n"
                        "x = [open('/dev/null') for i in range(20)]"),
                 "open files"));
  CHECK(contains(advice("open('/dev/full', 'w').write('x' * 100000)"), "a disk is full"));
  CHECK(contains(advice("import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 28, 1 << 28))\n"
                        "x = bytearray(1 << 30)"),
                 "memory ran out"));
  CHECK(contains(advice("import os, mmap, tempfile as t\nf = t.TemporaryFile(); f.truncate(4096)\n"
                        "m = mmap.mmap(f.fileno(), 4096); f.truncate(0); m[0]"),
                 "/dev/shm"));
  CHECK(contains(advice("import os; os.kill(os.getpid(), 4)"), "another processor"));
  CHECK(contains(advice("import socket as s; a = s.socket(); a.bind(('127.0.0.1', 0))\n"
                        "s.create_connection(a.getsockname())"),
                 "nobody answered"));
  CHECK(contains(run_job({python, "-m", "no_such_module_at_all"}).advice(),
                 "Python module is missing"));
  CHECK(contains(run_job({python, "/nonexistent/train.py"}).advice(), "no such script"));
}

TEST_CASE("real failures of shell commands get their advice") {
  CHECK(contains(run_job(shell("no_such_command_at_all")).advice(), "not found"));
  CHECK(contains(run_job(shell(read_pid + "kill -9 $pid")).advice(), "somebody sent SIGKILL"));
  CHECK(run_job(shell("exit 3")).advice() == "");
}

TEST_CASE("a core dump is named") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  DDPRUN_SKIP("a sanitizer forbids core dumps to ddprun and what it starts");
#endif
  const TemporaryFolder folder;
  const std::string pattern = content_of("/proc/sys/kernel/core_pattern");
  rlimit limit{};
  ::getrlimit(RLIMIT_CORE, &limit);
  if (limit.rlim_max == 0) DDPRUN_SKIP("core dumps are not allowed here");
  if (pattern.empty() || pattern[0] == '|' || pattern.find('/') != pattern.npos) {
    DDPRUN_SKIP("core dumps go elsewhere: " + pattern);
  }
  const std::string path = folder / "report.json";
  const auto result =
      run(shell("cd " + folder.path() + " && ulimit -c unlimited && exec " + binary("ddprun") +
                " --standalone --report " + path + " /bin/sh -c '" + read_pid + "kill -SEGV $pid'"),
          30s);

  INFO(result.output);
  CHECK(result.status == 128 + SIGSEGV);
  const json cause = json::parse(content_of(path))["first_cause"];
  REQUIRE(cause["core_dumped"] == true);
  const std::string core = cause["core"];
  CHECK(fs::path(core).parent_path() == fs::canonical(folder.path()));
  CHECK(fs::is_regular_file(core));
  CHECK(contains(result.output, "core dump   " + core));
}

TEST_CASE("a worker that the kernel killed for its memory is told apart") {
#ifdef __SANITIZE_ADDRESS__
  DDPRUN_SKIP("with AddressSanitizer ddprun itself needs more than the limit");
#endif
  const MemoryLimit limit(64 << 20);
  if (!limit.why_not().empty()) DDPRUN_SKIP(limit.why_not());
  const TemporaryFolder folder;
  const std::string path = folder / "report.json";
  const auto result =
      run(shell("echo $$ > " + limit.folder() + "/cgroup.procs && exec " + binary("ddprun") +
                " --standalone --report " + path + " " + binary("dying_worker") + " eat_memory"),
          60s);

  INFO(result.output);
  CHECK(result.status == 128 + SIGKILL);
  const json cause = json::parse(content_of(path))["first_cause"];
  CHECK(cause["oom_killed"] == true);
  CHECK(cause["memory_limit_bytes"] == 64 << 20);
  CHECK(contains(result.output, "killed by SIGKILL (out of memory)"));
  CHECK(contains(result.output, "ran out: the limit is 64.0 MiB"));
  CHECK(contains(cause["advice"], "memory ran out"));
}

TEST_CASE("a worker that was killed with memory to spare is not called out of memory") {
  const MemoryLimit limit(256 << 20);
  if (!limit.why_not().empty()) DDPRUN_SKIP(limit.why_not());
  const TemporaryFolder folder;
  const std::string path = folder / "report.json";
  const auto result =
      run(shell("echo $$ > " + limit.folder() + "/cgroup.procs && exec " + binary("ddprun") +
                " --standalone --report " + path + " /bin/sh -c '" + read_pid + "kill -9 $pid'"),
          60s);

  INFO(result.output);
  CHECK(result.status == 128 + SIGKILL);
  CHECK(json::parse(content_of(path))["first_cause"]["oom_killed"] == false);
}

TEST_CASE("a launcher killed by SIGKILL leaves no semaphores behind") {
  Process job(launch({"--standalone", "--nproc-per-node", "2"}) +
              shell(read_pid + "echo \"up $RANK pid $pid\"; exec sleep 300"));
  REQUIRE((job.wait_for_output("up 0", 20s) && job.wait_for_output("up 1", 20s)));
  // The set in which its workers were the last to do something.
  const std::vector<int> workers = {number_after(job.output(), "up 0 pid "),
                                    number_after(job.output(), "up 1 pid ")};
  int id = -1;
  std::ifstream table("/proc/sysvipc/sem");
  std::string line;
  std::getline(table, line);  // Titles.
  while (std::getline(table, line)) {
    std::istringstream row(line);
    int key = 0, candidate = -1;
    row >> key >> candidate;
    const int last_pid = ::semctl(candidate, 0, GETPID);
    if (std::count(workers.begin(), workers.end(), last_pid) != 0) id = candidate;
  }
  if (id < 0) DDPRUN_SKIP("this system has no System V semaphores for us");
  const std::vector<int> all = descendants_of(job.pid());

  job.send_signal(SIGKILL);

  CHECK(wait_until_gone(all, 20s));  // The guard is the last of them.
  CHECK(::semctl(id, 0, GETPID) == -1);
}

TEST_CASE("of two workers that die at almost the same time the first one is named, every time") {
  const TemporaryFolder folder;
  const std::string fifo = folder / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  int right = 0;
  for (int round = 0; round < 100; ++round) {
    const int first = round % 2;
    const std::string path = folder / "report.json";
    run(launch({"--standalone", "--nproc-per-node", "2", "--report", path}) +
            std::vector<std::string>{binary("dying_worker"), "in_order", fifo,
                                     std::to_string(first)},
        30s);
    const json report = json::parse(content_of(path));
    right += report["first_cause"]["rank"] == first ? 1 : 0;
  }
  CHECK(right == 100);
}
