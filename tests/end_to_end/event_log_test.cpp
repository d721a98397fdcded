// The event log of real runs against its documentation: every event has exactly the fields, and the
// types, that docs/event_log.md promises.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/end_to_end/endless_job.h"
#include "tests/testing/catch.h"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::testing;
using nlohmann::json;

namespace {

using Fields = std::map<std::string, std::string>;  // Name -> type, as in the document.

// The cells of a line of a Markdown table, without blanks and back-quotes.
std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> result;
  std::istringstream text(line.substr(1));
  for (std::string cell; std::getline(text, cell, '|');) {
    std::erase(cell, '`');
    const std::size_t begin = cell.find_first_not_of(' ');
    const std::size_t end = cell.find_last_not_of(' ');
    result.push_back(begin == cell.npos ? "" : cell.substr(begin, end - begin + 1));
  }
  return result;
}

struct Schema {
  Fields of_all;
  std::map<std::string, Fields> of_event;
};

Schema documented() {
  Schema schema;
  std::ifstream file(DDPRUN_SOURCE_DIR "/docs/event_log.md");
  std::string event;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| ", 0) != 0) continue;
    const auto row = cells(line);
    if (row[0] == "field" || row[0] == "event") {
      if (row[1] != "string") continue;  // A heading, not the field called event.
    }
    if (row.size() == 3) {
      schema.of_all[row[0]] = row[1];
    } else {
      if (!row[0].empty()) event = row[0];
      Fields& fields = schema.of_event[event];
      if (!row[1].empty()) fields[row[1]] = row[2];
    }
  }
  return schema;
}

bool has_type(const json& value, const std::string& type) {
  if (type.find("or null") != type.npos && value.is_null()) return true;
  if (type.rfind("string", 0) == 0) return value.is_string();
  if (type.rfind("object", 0) == 0) return value.is_object();
  if (type == "integer") return value.is_number_integer();
  if (type == "list of integers") {
    return value.is_array() && std::all_of(value.begin(), value.end(), [](const auto& each) {
             return each.is_number_integer();
           });
  }
  if (type == "boolean") return value.is_boolean();
  return false;
}

std::vector<json> read_log(const std::string& path) {
  std::vector<json> events;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) events.push_back(json::parse(line));
  return events;
}

std::set<std::string> names_of(const json& event) {
  std::set<std::string> names;
  for (const auto& item : event.items()) names.insert(item.key());
  return names;
}

void check_against_document(const std::vector<json>& events, std::set<std::string>& seen) {
  const Schema schema = documented();
  REQUIRE(schema.of_all.size() == 7);
  for (const json& event : events) {
    INFO(event.dump());
    const std::string name = event["event"];
    REQUIRE(schema.of_event.count(name) == 1);
    seen.insert(name);
    Fields expected = schema.of_all;
    expected.insert(schema.of_event.at(name).begin(), schema.of_event.at(name).end());
    std::set<std::string> names;
    for (const auto& [field, type] : expected) names.insert(field);
    CHECK(names_of(event) == names);
    for (const auto& [field, type] : expected) {
      INFO(field);
      if (event.contains(field)) CHECK(has_type(event[field], type));
    }
  }
}

std::vector<json> named(const std::vector<json>& events, const std::string& name) {
  std::vector<json> result;
  for (const json& event : events) {
    if (event["event"] == name) result.push_back(event);
  }
  return result;
}

TEST_CASE("events that a full disk refuses are missing, and those after them are there",
          "[launcher][event_log]") {
  const TemporaryFolder folder;
  const std::string disk = folder / "disk", errors = folder / "errors", out = folder / "events";
  std::filesystem::create_directory(disk);
  if (run({"unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", disk}, 20s).status != 0) {
    DDPRUN_SKIP("this user may not mount a file system (unshare -m)");
  }
  const std::vector<std::string> mounted = {"unshare",
                                            "-m",
                                            "sh",
                                            "-c",
                                            "mount -t tmpfs -o size=64k tmpfs " + disk +
                                                " && { \"$@\" 2>" + errors + "; status=$?; cp " +
                                                disk + "/events " + out + "; exit $status; }",
                                            "sh"};
  // Attempt after attempt, until what is left of the log's last page is full, too.
  const auto result =
      run(mounted +
              launch({"--standalone", "--max-restarts", "100", "--restart-backoff", "0",
                      "--max-same-failures", "0", "--event-log", disk + "/events"}) +
              shell("if grep -q 'cannot write the event log' " + errors + "; then rm " + disk +
                    "/filler; exit 0; fi; head -c 200000 /dev/zero >" + disk +
                    "/filler 2>/dev/null; exit 1"),
          60s);
  INFO(result.output << content_of(errors));
  CHECK(result.status == 0);
  CHECK(contains(content_of(errors), "events are missing there until it can"));
  std::ifstream file(out);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  const auto is_whole = [](const std::string& line) { return json::accept(line); };
  CHECK(std::count_if(lines.begin(), lines.end(), is_whole) + 1 >=
        static_cast<std::ptrdiff_t>(lines.size()));
  REQUIRE_FALSE(lines.empty());
  CHECK(contains(lines.back(), "job_ended"));
}

TEST_CASE("events that a limit of file sizes cuts off are not called a full disk's",
          "[launcher][event_log]") {
  const TemporaryFolder folder;
  const std::string log = folder / "events";
  std::ofstream(log) << "{}\n";
  const FileSizeLimit limit(600);  // In the middle of a line.

  const auto result = run(launch({"--standalone", "--event-log", log, "true"}), 20s);

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(std::filesystem::file_size(log) == 600);
  CHECK(
      contains(result.output,
               "cannot write the event log: its file has reached the limit of sizes (ulimit -f)"));
  CHECK_FALSE(contains(result.output, "No space left"));
}

// Kills a worker of half a gigabyte, and looks at what its job tells of that. Whether it told of
// the death before the kernel was done with the process.
bool kill_heavy_worker() {
  const TemporaryFolder folder;
  const std::string log = folder / "events.jsonl";
  Process job(launch({"--standalone", "--event-log", log, binary("dying_worker"), "heavy", "512"}));
  REQUIRE(job.wait_for_output("heavy", 30s));
  const int pid = named(read_log(log), "worker_started").at(0)["worker_pid"];
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  REQUIRE(pidfd >= 0);

  ::kill(pid, SIGKILL);
  pollfd gone{pidfd, POLLIN, 0};
  REQUIRE(::poll(&gone, 1, 30'000) == 1);
  const auto gone_at = std::chrono::system_clock::now().time_since_epoch();

  CHECK(job.wait(20s).status == 128 + SIGKILL);
  ::close(pidfd);
  const auto ends = named(read_log(log), "worker_ended");
  REQUIRE(ends.size() == 1);
  CHECK(ends[0]["signal"] == "SIGKILL");
  const std::chrono::microseconds told_at(ends[0]["time_unix_us"].get<std::int64_t>());
  // And the job was not over before it was gone.
  const auto over = named(read_log(log), "attempt_ended").at(0);
  CHECK(over["time_unix_us"].get<std::int64_t>() > ends[0]["time_unix_us"].get<std::int64_t>());
  return told_at < gone_at;
}

}  // namespace

TEST_CASE("every event is what its documentation says") {
  const TemporaryFolder folder;
  const std::string failing = folder / "failing.jsonl";
  const auto result = run(launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "1",
                                  "--event-log", failing}) +
                              shell(read_pid + "[ $RANK = 0 ] || kill -9 $pid; exec sleep 300"),
                          20s);
  INFO(result.output);
  REQUIRE(result.status == 137);
  const auto events = read_log(failing);
  std::set<std::string> seen;
  check_against_document(events, seen);

  CHECK(named(events, "attempt_started").size() == 2);
  CHECK(named(events, "worker_started").size() == 4);
  const auto ends = named(events, "worker_ended");
  REQUIRE(ends.size() == 4);
  CHECK(ends[0]["rank"] == 1);
  CHECK(ends[0]["signal"] == "SIGKILL");
  CHECK(ends[0]["stopped"] == false);
  CHECK(ends[1]["stopped"] == true);
  const auto verdicts = named(events, "attempt_verdict");
  REQUIRE(verdicts.size() == 2);
  CHECK(verdicts[0]["final"] == false);
  CHECK(verdicts[1]["final"] == true);
  CHECK(events.back()["event"] == "job_ended");
  CHECK(events.back()["exit_status"] == 137);
  CHECK(events.back()["first_cause"]["rank"] == 1);
  CHECK(events.front()["event"] == "launcher_started");

  // The rest of the document's events: two agents in one file, and signals.
  const std::string shared = folder / "shared.jsonl";
  const std::uint16_t port = free_port();
  const auto node = [&](int rank) {
    return launch_node(rank, port, {"--event-log", shared, "--forward-signals", "USR1"},
                       shell(until_usr1("up $RANK")));
  };
  Process first(node(0));
  REQUIRE(first.wait_for_output("waiting for", 20s));
  Process second(node(1));
  REQUIRE(first.wait_for_output("up 0", 20s));
  REQUIRE(second.wait_for_output("up 1", 20s));
  finish({&first, &second});
  const auto of_both = read_log(shared);
  check_against_document(of_both, seen);
  CHECK(named(of_both, "job_ended").size() == 2);

  const std::string spares = folder / "spares.jsonl";
  Process with_spare(launch({"--standalone", "--max-restarts", "1", "--spares", "1", "--event-log",
                             spares, "--forward-signals", "USR1"}) +
                     shell("if [ $RANK = spare ]; then echo >&$DDPRUN_SPARE_FD; exit 3; fi; " +
                           until_usr1("up $RANK")));
  REQUIRE(with_spare.wait_for_output("up 0", 20s));
  REQUIRE(with_spare.wait_for_output("ended with exit code 3", 20s));
  finish({&with_spare});
  check_against_document(read_log(spares), seen);

  const std::string parking = folder / "parking.jsonl";
  Process with_parked(
      launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--event-log",
              parking, "--forward-signals", "USR1"}) +
      shell(read_pid +
            "if [ $RANK = 0 ]; then fd=$DDPRUN_RANK_FD; printf k >&$fd; echo can park; "
            "head -c 1 <&$fd > /dev/null; echo >&$fd; fi; " +
            until_usr1("up $RANK $TORCHELASTIC_RESTART_COUNT pid $pid")));
  REQUIRE(with_parked.wait_for_output("can park", 20s));
  REQUIRE(with_parked.wait_for_output("up 1 0 pid ", 20s));
  ::kill(number_after(with_parked.output(), "up 1 0 pid "), SIGKILL);
  REQUIRE(with_parked.wait_for_output("up 0 0 pid ", 20s));
  REQUIRE(with_parked.wait_for_output("up 1 1 pid ", 20s));
  finish({&with_parked});
  check_against_document(read_log(parking), seen);

  const std::string standing = folder / "standing.jsonl";
  const auto lost = run(launch({"--standalone", "--nproc-per-node", "2", "--stall-timeout", "1",
                                "--on-stall", "fail", "--event-log", standing, "sleep", "300"}),
                        30s);
  INFO(lost.output);
  CHECK(lost.status == 137);
  const auto of_standing = read_log(standing);
  check_against_document(of_standing, seen);
  const auto stalls = named(of_standing, "stalled");
  REQUIRE(stalls.size() == 2);
  CHECK(stalls[0]["counts_as_lost"] == false);
  CHECK(stalls[1]["counts_as_lost"] == true);

  const std::string paced = folder / "paced.jsonl";
  Process with_straggler(
      launch({"--standalone", "--nproc-per-node", "2", "--stall-timeout", "1", "--event-log", paced,
              "--forward-signals", "USR1,USR2", DDPRUN_PACED_WORKER, "1"}));
  REQUIRE(with_straggler.wait_for_output("rank 0 trains", 20s));
  REQUIRE(with_straggler.wait_for_output("rank 1 trains", 20s));
  with_straggler.send_signal(SIGUSR1);
  REQUIRE(with_straggler.wait_for_output(" is slow, by ", 60s));
  with_straggler.send_signal(SIGUSR2);
  CHECK(with_straggler.wait(20s).status == 0);
  check_against_document(read_log(paced), seen);

  // The job is over, and nobody reads what it wrote.
  const std::string dropped = folder / "dropped.jsonl";
  const std::string pipe = folder / "pipe";
  const auto stuck =
      run(shell("mkfifo " + pipe + "; sleep 300 < " + pipe + " & reader=$!; " + binary("ddprun") +
                " --standalone --nproc-per-node 2 --event-log " + dropped + " seq 12000 > " + pipe +
                " 2>&1 & job=$!; " + "until grep -q job_ended " + dropped + " 2> /dev/null; do " +
                "sleep 0.01; done; kill -TERM $job; wait $job; kill $reader"),
          30s);
  CHECK(stuck.ended);
  const auto of_stuck = read_log(dropped);
  check_against_document(of_stuck, seen);
  CHECK(of_stuck.back()["event"] == "output_dropped");
  CHECK(of_stuck.back()["bytes"] > 0);

  const std::string unfit = folder / "unfit.jsonl";
  const auto sick = run(launch({"--standalone", "--event-log", unfit, "--node-check",
                                "echo GPU 3 was lost; exit 1", "true"}),
                        30s);
  CHECK(sick.status == 69);
  const auto of_unfit = read_log(unfit);
  check_against_document(of_unfit, seen);
  REQUIRE(named(of_unfit, "node_checked").size() == 1);
  CHECK(named(of_unfit, "node_checked")[0]["fit"] == false);
  CHECK(named(of_unfit, "node_checked")[0]["why"] ==
        "its --node-check ended with 1: GPU 3 was lost");

  std::set<std::string> known;
  for (const auto& [name, fields] : documented().of_event) known.insert(name);
  CHECK(seen == known);
}

TEST_CASE("an event log that cannot be written is named before anything starts") {
  const auto result =
      run(launch({"--event-log", "/nowhere/events", "sh", "-c", "echo started"}), 20s);

  CHECK(result.status == 2);
  CHECK(contains(result.output, "/nowhere/events"));
  CHECK_FALSE(contains(result.output, "started"));
}

TEST_CASE("a half line of an earlier job costs no event of this one") {
  const TemporaryFolder folder;
  const std::string path = folder / "events";
  const std::string half = R"({"event":"job_st)";
  std::ofstream(path) << half;
  REQUIRE(run(launch({"--standalone", "--event-log", path, "true"}), 20s).status == 0);
  std::ifstream file(path);
  std::string line;
  REQUIRE(std::getline(file, line));
  CHECK(line == half);
  int events = 0;
  for (; std::getline(file, line); ++events) CHECK(nlohmann::json::accept(line));
  CHECK(events > 2);
}

TEST_CASE("a FIFO that nobody reads yet is named, and waited for") {
  const TemporaryFolder folder;
  const std::string path = folder / "events";
  REQUIRE(run({"mkfifo", path}, 10s).status == 0);
  Process job(launch({"--standalone", "--event-log", path, "true"}));
  REQUIRE(job.wait_for_output("nobody reads --event-log=" + path, 20s));
  const ProcessResult read = run({"cat", path}, 20s);
  CHECK(job.wait(20s).status == 0);
  CHECK(contains(read.output, "\"job_ended\""));
}

TEST_CASE("16.5: a worker's death is told while the kernel still takes it apart") {
  constexpr long futex_waitv = 449;
  if (::syscall(futex_waitv, nullptr, 0, 0, nullptr, 0) != 0 && errno == ENOSYS) {
    DDPRUN_SKIP("this kernel cannot wait for several words");
  }
  // Of a machine where all processors have other work the launcher may get none before that is
  // done.
  bool told_in_time = false;
  for (int i = 0; i < 20 && !told_in_time; ++i) told_in_time = kill_heavy_worker();
  CHECK(told_in_time);
}
