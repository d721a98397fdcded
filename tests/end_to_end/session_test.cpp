// A job that was started by ssh without a terminal, whose session is lost.
#include "launcher/session.h"

#include <signal.h>

#include "tests/end_to_end/job_place.h"
#include "tests/end_to_end/ssh_session.h"

using namespace ddprun::testing;
using ddprun::launcher::session_is_lost;

namespace {

// What a quiet worker is: it has said its only word.
const std::string quiet = "echo up; exec sleep 300";

// The session's launcher and all that it has started.
std::vector<int> processes_of(Process& session) {
  REQUIRE(session.wait_for_output(".\n", 20s));
  const int launcher = number_after(session.output(), "launcher ");
  std::vector<int> all = descendants_of(launcher);
  all.push_back(launcher);
  return all;
}

}  // namespace

TEST_CASE("14.17: readers and a parent may go, each alone") {
  CHECK(session_is_lost({.output_gone = true, .input_gone = true}));
  CHECK(session_is_lost({.output_gone = true, .parent_gone = true}));
  CHECK_FALSE(session_is_lost({.output_gone = true}));
  CHECK_FALSE(session_is_lost({.input_gone = true, .parent_gone = true}));
}

TEST_CASE("14.17: a quiet job ends when the ssh session that started it is lost") {
  const Place place;
  const std::string report = place.folder / "report.json";
  Process session(session_of(launch({"--standalone", "--report", report}) + shell(quiet)),
                  place.variables());
  const std::vector<int> job = processes_of(session);

  session.send_signal(SIGKILL);

  CHECK(wait_until_gone(job, 20s));
  check_nothing_left(place);
  CHECK(report_in(report)["exit_status"] == 128 + SIGHUP);
}

TEST_CASE("14.17: run_node.sh, which starts a killed launcher again, ends with its session") {
  const Place place;
  auto variables = place.variables();
  variables.insert({{"AGENT_RESTARTS", "2"},
                    {"DDPRUN", binary("ddprun")},
                    {"MASTER_PORT", std::to_string(free_port())},
                    {"NPROC", "1"}});
  Process session(
      session_of(std::vector<std::string>{DDPRUN_SOURCE_DIR "/scripts/run_node.sh"} + shell(quiet)),
      variables);
  const std::vector<int> job = processes_of(session);

  session.send_signal(SIGKILL);

  CHECK(wait_until_gone(job, 20s));
  check_nothing_left(place);
}

TEST_CASE("14.17: --stay and nohup keep a job whose ssh session is lost") {
  for (const bool by_nohup : {false, true}) {
    INFO((by_nohup ? "nohup" : "--stay"));
    const Place place;
    const std::string report = place.folder / "report.json";
    std::vector<std::string> command =
        launch({"--standalone", "--report", report, "--forward-signals", "USR2"});
    if (by_nohup) command.insert(command.begin(), "nohup");
    if (!by_nohup) command.push_back("--stay");
    // It ends by itself once it is told to, which is after the loss. Of what it prints then it
    // would die by SIGPIPE, had it our stdout, as it has with nohup alone.
    const std::string last_word = by_nohup ? "" : "echo saved; ";
    Process session(session_of(command + shell("trap '" + last_word +
                                               "exit 0' USR2; echo up; while :; do sleep 0.05; "
                                               "done")),
                    place.variables());
    const std::vector<int> job = processes_of(session);

    session.send_signal(SIGKILL);
    REQUIRE(session.wait(20s).ended);
    ::kill(job.back(), SIGUSR2);

    CHECK(wait_until_gone(job, 20s));
    CHECK(report_in(report)["exit_status"] == 0);
  }
}
