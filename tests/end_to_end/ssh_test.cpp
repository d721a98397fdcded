// ddprun -H: whole jobs on several hosts by one command, over a real sshd; and what it says of
// hosts that cannot be reached.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/end_to_end/ssh_hosts.h"
#include "tests/end_to_end/ssh_session.h"

using namespace ddprun::testing;

namespace {

#define REQUIRE_SSHD()                                             \
  if (const std::string why = SshHosts::missing(); !why.empty()) { \
    DDPRUN_SKIP(why);                                              \
  }

// A job on two hosts whose workers say that they are up and wait.
std::vector<std::string> waiting_job(const SshHosts& hosts, const std::string& commands) {
  return launch({"-H", "host-a,host-b", hosts.options()}) + shell(commands + say_up_and_wait);
}

bool wait_for_both_hosts(Process& job) {
  return job.wait_for_output("[host-a] up 0", 60s) && job.wait_for_output("[host-b] up 1", 60s);
}

// A launcher whose file is gone, as seen from "another host".
std::vector<std::string> launch_without_file(const Place& place,
                                             const std::vector<std::string>& arguments) {
  const std::string copy = place.folder / "ddprun-copy";
  return std::vector<std::string>{"/bin/sh", "-c",
                                  "cp " + binary("ddprun") + " " + copy + " && exec 9< " + copy +
                                      " && rm " + copy + " && exec /proc/self/fd/9 \"$@\"",
                                  "launch"} +
         arguments;
}

void write_script(const std::string& path, const std::string& commands) {
  std::ofstream(path) << "#!/bin/sh\n" << commands << "\n";
  REQUIRE(run({"chmod", "755", path}, 20s).status == 0);
}

// Variables with an "ssh" that goes nowhere, in a folder that is on the PATH of all hosts but
// host-b.
std::map<std::string, std::string> without_sshd(const Place& place) {
  const std::string tools = place.folder / "tools";
  REQUIRE(std::filesystem::create_directory(tools));
  write_script(tools + "/ssh",
               "case \"$*\" in *host-b*) PATH=/usr/bin:/bin ;; esac\n"
               "export SSH_CONNECTION='127.0.0.1 1 127.0.0.1 22'\n"
               "for command; do :; done\n"
               "exec /bin/sh -c \"$command\"");
  auto variables = place.variables();
  variables["PATH"] = tools + ":/usr/bin:/bin";
  return variables;
}

// Whether a process would wait now if it wrote into the pipe that its stdout is.
bool stdout_is_full(int pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/1";
  pollfd pipe{::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC), POLLOUT, 0};
  if (pipe.fd < 0) return false;
  const bool is_full = ::poll(&pipe, 1, 0) == 0;
  ::close(pipe.fd);
  return is_full;
}

// Lines of two hosts, less than is held up at a time, and a reader that begins when stderr says
// what is waited for.
ProcessResult job_with_reader(const Place& place, const std::string& reader) {
  return run({"/bin/bash", "-c",
              "cd " + place.folder.path() + " && { echo $BASHPID > pid; exec " + binary("ddprun") +
                  " -H host-a,host-b seq 25000; } 2> err | { for i in {1..600}; do grep -q 'the "
                  "job is over' err && break; sleep 0.1; done; " +
                  reader + "; }; echo status ${PIPESTATUS[0]}; cat err"},
             120s, without_sshd(place));
}

}  // namespace

TEST_CASE("17.3: one command starts a job on several hosts, with tags and ranks") {
  REQUIRE_SSHD();
  const Place place;
  const SshHosts hosts(place);

  const ProcessResult result = run(
      launch({"-H", "host-a:2,host-b", hosts.options(), "-x", "MY_*", "-x", "B=2 c", "--auth",
              "secret", "--quiet"}) +
          shell("echo \"rank $RANK of $WORLD_SIZE node $GROUP_RANK at $MASTER_ADDR with $MY_ONE "
                "$B.$OTHER.\"; tr '\\0' ' ' < /proc/$PPID/cmdline"),
      120s, {{"MY_ONE", "1"}, {"OTHER", "no"}});

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "[host-a] rank 0 of 3 node 0 at 127.0.0.1 with 1 2 c.."));
  CHECK(contains(result.output, "[host-a] rank 1 of 3 node 0"));
  CHECK(contains(result.output, "[host-b] rank 2 of 3 node 1 at 127.0.0.1 with 1 2 c.."));
  // All else comes through stdin, the secret too.
  CHECK(count_of(result.output, "ddprun --node-on-stdin") == 3);
  check_nothing_left(place);
}

TEST_CASE("17.3: a host's end is heard of, too, where who started us ignores SIGCHLD") {
  const Place place;
  const std::vector<std::string> ignoring = {"env", "--ignore-signal=CHLD"};
  const ProcessResult result =
      run(ignoring + launch({"-H", "host-a"}) + shell("exit 3"), 60s, without_sshd(place));
  INFO(result.output);
  CHECK(result.status == 3);
}

TEST_CASE("17.3: the job's failure is told once, and its status and report are the launcher's") {
  REQUIRE_SSHD();
  const Place place;
  const SshHosts hosts(place);
  const std::string report = place.folder / "report.json";

  const ProcessResult result =
      run(launch({"-H", "host-a,host-b", hosts.options(), "--report", report}) +
              shell("[ $RANK = 0 ] && exec sleep 300; echo bad news >&2; exit 7"),
          120s);

  INFO(result.output);
  CHECK(result.status == 7);
  CHECK(contains(result.output, "[host-b] bad news"));
  CHECK(count_of(result.output, "FAILED: rank 1") == 1);
  std::ifstream file(report);
  const auto json = nlohmann::json::parse(file);
  CHECK(json["exit_status"] == 7);
  check_nothing_left(place);
}

TEST_CASE("17.3: a program is found from the working folder, as mpirun finds it") {
  REQUIRE_SSHD();
  const Place place;
  const SshHosts hosts(place);
  std::ofstream(place.folder / "here") << "#!/bin/sh\necho \"in $PWD.\"\n";
  REQUIRE(run({"chmod", "755", place.folder / "here"}, 20s).status == 0);

  const ProcessResult result = run({"/bin/sh", "-c",
                                    "cd " + place.folder.path() + " && exec " + binary("ddprun") +
                                        " -H localhost,host-b '" + hosts.options() + "' ./here"},
                                   120s);

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "[localhost] in " + place.folder.path() + "."));
  CHECK(contains(result.output, "[host-b] in " + place.folder.path() + "."));
}

TEST_CASE("17.3: localhost needs no ssh") {
  const ProcessResult result =
      run(launch({"-H", "localhost:2", "--quiet"}) + shell("echo $RANK up"), 60s,
          {{"PATH", "/nowhere"}});
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "[localhost] 1 up"));
}

TEST_CASE("17.3: Ctrl-C reaches every host, and a second one kills deaf workers") {
  REQUIRE_SSHD();
  for (const bool is_deaf : {false, true}) {
    INFO(is_deaf);
    const Place place;
    const SshHosts hosts(place);
    Process job(waiting_job(hosts, is_deaf ? deaf : ""), place.variables());
    REQUIRE(wait_for_both_hosts(job));

    job.send_signal(SIGINT);
    if (is_deaf) {
      REQUIRE(job.wait_for_output("[host-a] [ddprun] got SIGINT", 30s));
      REQUIRE(job.wait_for_output("[host-b] [ddprun] got SIGINT", 30s));
      job.send_signal(SIGINT);
    }
    const ProcessResult result = job.wait(60s);

    INFO(result.output);
    CHECK(result.ended);
    CHECK(result.status == 130);
    check_nothing_left(place);
  }
}

TEST_CASE("17.3: nothing is left on any host when the launcher is killed") {
  REQUIRE_SSHD();
  const Place place;
  const SshHosts hosts(place);
  Process job(waiting_job(hosts, ""), place.variables());
  REQUIRE(wait_for_both_hosts(job));

  job.send_signal(SIGKILL);

  CHECK(job.wait(30s).ended);
  check_nothing_left(place);
}

TEST_CASE("17.3: a host whose connection breaks ends the job on the others") {
  REQUIRE_SSHD();
  const Place place;
  const SshHosts hosts(place);
  Process job(waiting_job(hosts, ""), place.variables());
  REQUIRE(wait_for_both_hosts(job));
  const std::vector<int> connections = descendants_running(job.pid(), "ssh");
  REQUIRE(connections.size() == 2);

  ::kill(connections.back(), SIGKILL);
  const ProcessResult result = job.wait(90s);

  INFO(result.output);
  CHECK(result.ended);
  CHECK(result.status != 0);
  CHECK(contains(result.output, "lost the connection to host-"));
  check_nothing_left(place);
}

TEST_CASE("17.3: an elastic job goes on without the host whose connection breaks") {
  REQUIRE_SSHD();
  const Place place;
  const SshHosts hosts(place);
  Process job(launch({"-H", "host-a,host-b", hosts.options(), "--rdzv-backend", "c10d", "--nnodes",
                      "1:2"}) +
                  shell("[ $WORLD_SIZE = 1 ] && echo alone && exit 0; echo up $RANK; "
                        "exec sleep 1000"),
              place.variables());
  REQUIRE(job.wait_for_output("[host-a] up ", 60s));
  REQUIRE(job.wait_for_output("[host-b] up ", 60s));
  for (const int connection : descendants_running(job.pid(), "ssh")) {
    const std::string words = content_of("/proc/" + std::to_string(connection) + "/cmdline");
    if (contains(words, "host-b")) ::kill(connection, SIGKILL);
  }
  const ProcessResult result = job.wait(90s);

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "[host-a] alone"));
  CHECK(contains(result.output, "lost the session that had started it; the others go on"));
  CHECK_FALSE(contains(result.output, "restart 1 of"));
  check_nothing_left(place);
}

TEST_CASE("17.3: jobs share no connection that ends with one of them") {
  REQUIRE_SSHD();
  const Place place;
  const SshHosts hosts(place);
  std::ofstream(place.folder / "ssh/config", std::ios::app)
      << "Host *\n  ControlMaster auto\n  ControlPath " << (place.folder / "master-%n") << "\n";
  Process first(waiting_job(hosts, ""), place.variables());
  REQUIRE(wait_for_both_hosts(first));
  const std::string go = place.folder / "go";
  Process second(launch({"-H", "host-a,host-b", hosts.options()}) +
                     shell("echo up $RANK; until [ -e " + go + " ]; do sleep 0.05; done"),
                 place.variables());
  REQUIRE(wait_for_both_hosts(second));

  first.send_signal(SIGKILL);
  CHECK(first.wait(30s).ended);
  std::ofstream(go).close();
  const ProcessResult result = second.wait(60s);

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK_FALSE(contains(result.output, "lost the connection"));
  check_nothing_left(place);
}

TEST_CASE("17.3: with --stay a node goes on without its connection, also where it prints") {
  REQUIRE_SSHD();
  const Place place;
  const SshHosts hosts(place);
  const std::string go = place.folder / "go", done = place.folder / "done.";
  Process job(launch({"-H", "host-a,host-b", hosts.options(), "--stay"}) +
                  shell("echo up $RANK; until [ -e " + go + " ]; do sleep 0.05; done; echo more; " +
                        "echo more > " + done + "$RANK"),
              place.variables());
  REQUIRE(wait_for_both_hosts(job));
  const std::vector<int> connections = descendants_running(job.pid(), "ssh");
  REQUIRE(connections.size() == 2);

  ::kill(connections.back(), SIGKILL);
  REQUIRE(job.wait_for_output("what runs there goes on (--stay)", 30s));
  std::ofstream(go).close();
  const ProcessResult result = job.wait(60s);

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(content_of(done + "0") == "more\n");
  CHECK(content_of(done + "1") == "more\n");
  check_nothing_left(place);
}

TEST_CASE("17.3: a job of one host that was lost had begun, whether it goes on or not") {
  REQUIRE_SSHD();
  const Place place;
  const SshHosts hosts(place);
  Process job(launch({"-H", "host-a", hosts.options()}) + shell("echo up; exec sleep 1000"),
              place.variables());
  REQUIRE(job.wait_for_output("up", 30s));
  const std::vector<int> connections = descendants_running(job.pid(), "ssh");
  REQUIRE(connections.size() == 1);

  ::kill(connections[0], SIGKILL);
  const ProcessResult result = job.wait(60s);

  INFO(result.output);
  CHECK(result.status == 74);
  CHECK_FALSE(contains(result.output, "did not begin"));
  check_nothing_left(place);
}

TEST_CASE("17.3: a job of several hosts ends when the ssh session that started it is lost") {
  REQUIRE_SSHD();
  const Place place;
  const SshHosts hosts(place);
  const std::string report = place.folder / "report.json";
  Process session(session_of(launch({"-H", "host-a,host-b", hosts.options(), "--report", report}) +
                             shell("echo up; exec sleep 300")),
                  place.variables());
  REQUIRE(session.wait_for_output(".\n", 60s));
  const int launcher = number_after(session.output(), "launcher ");

  session.send_signal(SIGKILL);

  CHECK(wait_until_gone({launcher}, 20s));
  check_nothing_left(place);
  CHECK(report_in(report)["exit_status"] == 128 + SIGHUP);
}

TEST_CASE(
    "17.3: a launcher that hangs on another host holds up the end of a failed job no longer "
    "than its limit") {
  REQUIRE_SSHD();
  const Place place;
  const SshHosts hosts(place);
  const std::string report = place.folder / "report.json";
  // Workers tell who their launcher is.
  Process job(
      launch({"-H", "host-a,host-b", hosts.options(), "--shutdown-timeout", "1", "--rdzv-conf",
              "heartbeat_timeout=2,heartbeat_interval=0.5", "--report", report}) +
          shell("echo \"up $RANK by $PPID.\"; exec sleep 300"),
      place.variables());
  REQUIRE(wait_for_both_hosts(job));
  REQUIRE(job.wait_for_output("[host-b] up 1 by ", 10s));
  const int launcher = number_after(job.output(), "up 1 by ");

  ::kill(launcher, SIGSTOP);
  const ProcessResult result = job.wait(90s);
  ::kill(launcher, SIGCONT);

  INFO(result.output);
  CHECK(result.ended);
  CHECK(result.status == 74);
  CHECK(contains(result.output, "host-b did not end in time: its connection is cut"));
  CHECK(contains(result.output, "FAILED: "));
  std::ifstream file(report);
  CHECK(nlohmann::json::parse(file)["exit_status"] == 74);
  check_nothing_left(place);
}

TEST_CASE("17.3: more hosts than the soft limit of open files has room for, and it is handed on") {
  const Place place;
  const std::string command = "ulimit -Sn 64 && exec \"$@\"";
  const ProcessResult result =
      run(std::vector<std::string>{"/bin/bash", "-c", command, "limited"} +
              launch({"-H", "host-[01-18]", "--quiet"}) + shell("echo limit $(ulimit -Sn)"),
          120s, without_sshd(place));

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(count_of(result.output, "limit 64\n") == 18);
  check_nothing_left(place);
}

TEST_CASE("17.3: hosts that an sshd turns away for too many logins are tried again") {
  const Place place;
  auto variables = without_sshd(place);
  write_script(place.folder / "tools/real-ssh", content_of(place.folder / "tools/ssh"));
  // Each host's first login is one too many.
  write_script(place.folder / "tools/ssh",
               "for host; do case $host in host-*) break ;; esac; done\n"
               "if mkdir " +
                   place.folder.path() +
                   "/was-$host 2>/dev/null; then\n"
                   "  echo 'kex_exchange_identification: Connection closed by remote host' >&2\n"
                   "  exit 255\n"
                   "fi\n"
                   "exec real-ssh \"$@\"");
  const ProcessResult result = run(
      launch({"-H", "host-[01-06]"}) + shell("echo rank $RANK of $WORLD_SIZE"), 120s, variables);

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(count_of(result.output, "of 6\n") == 6);
  CHECK(count_of(result.output, "trying again, with fewer at a time") == 1);
  check_nothing_left(place);
}

TEST_CASE("17.3: one metrics file of a job on several hosts has the ranks of all") {
  const Place place;
  const std::string file = place.folder / "job.prom";
  const ProcessResult result =
      run(launch({"-H", "host-a,host-c", "--metrics-file", file}) +
              shell("until grep -qs 'rank=\"0\"' " + file + " && grep -qs 'rank=\"1\"' " + file +
                    "; do sleep 0.05; done"),
          120s, without_sshd(place));

  INFO(result.output);
  CHECK(result.status == 0);
  const std::string metrics = content_of(file);
  INFO(metrics);
  CHECK(contains(metrics, "state=\"done\"} 1"));
  CHECK(contains(metrics, "rank=\"0\",local_rank=\"0\"} 0"));
  CHECK(contains(metrics, "rank=\"1\",local_rank=\"0\"} 0"));
  check_nothing_left(place);
}

TEST_CASE("17.3: a host that cannot be used is named with ssh's words and what to do") {
  REQUIRE_SSHD();
  struct Wrong {
    const char* host;
    const char* words;
    const char* advice;
  };
  for (const Wrong& wrong :
       {Wrong{"host-refused", "Connection refused", "is sshd running"},
        Wrong{"host-unknown", "Host key verification failed", "accept-new"},
        Wrong{"host-denied", "Permission denied", "ssh-copy-id host-denied"}}) {
    INFO(wrong.host);
    const Place place;
    const SshHosts hosts(place);

    const ProcessResult result =
        run(launch({"-H", std::string("host-a,") + wrong.host, hosts.options()}) +
                shell("echo started"),
            120s, place.variables());

    INFO(result.output);
    CHECK(result.status == 70);
    CHECK(contains(result.output, std::string("[ddprun] ") + wrong.host + ": "));
    CHECK(contains(result.output, wrong.words));
    CHECK(contains(result.output, wrong.advice));
    CHECK_FALSE(contains(result.output, "] started"));
    check_nothing_left(place);
  }
}

TEST_CASE("17.3: a host without ddprun is named, and --copy-self sends one and takes it back") {
  REQUIRE_SSHD();
  const Place place;
  const SshHosts hosts(place);
  const std::vector<std::string> job =
      std::vector<std::string>{"-H", "host-a,host-b", hosts.options(), "--quiet"} +
      shell("echo started $RANK");

  const ProcessResult without = run(launch_without_file(place, job), 120s, place.variables());
  INFO(without.output);
  CHECK(without.status == 70);
  CHECK(contains(without.output, "not found"));
  CHECK(contains(without.output, "--copy-self"));

  const ProcessResult with =
      run(launch_without_file(place, std::vector<std::string>{"--copy-self"} + job), 120s,
          place.variables());
  INFO(with.output);
  CHECK(with.status == 0);
  CHECK(contains(with.output, "[host-a] started 0"));
  CHECK(contains(with.output, "[host-b] started 1"));
  check_nothing_left(place);
}

TEST_CASE("17.3: an ssh that never answers is given up, and the others are ended") {
  const Place place;
  const auto variables = without_sshd(place);
  write_script(place.folder.path() + "/tools/ssh", "exec sleep 300");

  const ProcessResult result = run(
      launch({"-H", "localhost,host-x", "--rdzv-conf", "join_timeout=1"}) + shell("echo started"),
      60s, variables);

  INFO(result.output);
  CHECK(result.ended);
  CHECK(result.status == 70);
  CHECK(contains(result.output, "host-x: no answer within 1 s"));
  CHECK_FALSE(contains(result.output, "] started"));
  check_nothing_left(place);
}

TEST_CASE("17.3: a host that cannot start its node ends the job at once, with its own status") {
  for (const char* backend : {"static", "c10d"}) {
    INFO(backend);
    const Place place;
    const auto variables = without_sshd(place);
    write_script(place.folder.path() + "/tools/only-there", "echo started");
    const std::string report = place.folder / "report.json";

    const ProcessResult result = run(launch({"-H", "host-a,host-b", "--rdzv-backend", backend,
                                             "--report", report, "only-there"}),
                                     60s, variables);

    INFO(result.output);
    CHECK(result.ended);
    CHECK(result.status == 2);
    CHECK(contains(result.output, "[ddprun] host-b: its launcher ended with status 2"));
    CHECK(contains(result.output, "[ddprun] the job did not begin"));
    CHECK_FALSE(contains(result.output, "did not end in time"));
    CHECK_FALSE(contains(result.output, "] started"));
    std::ifstream file(report);
    const auto json = nlohmann::json::parse(file);
    CHECK(json["exit_status"] == 2);
    CHECK(json["attempts"] == 0);
    CHECK(contains(json["why"].get<std::string>(), "host-b"));
    check_nothing_left(place);
  }
}

TEST_CASE("17.3: a reader that is slow gets everything from all hosts") {
  const Place place;
  const ProcessResult result = job_with_reader(place, "wc -l");
  INFO(result.output);
  CHECK(contains(result.output, "50000\nstatus 0\n"));
  CHECK(contains(result.output, "bytes of its output wait for whoever reads stdout"));
  check_nothing_left(place);
}

TEST_CASE("17.3: a job is taken over while nobody reads its output") {
  const Place place;
  const std::string lost = place.folder / "lost", up = place.folder / "up.",
                    again = place.folder / "again.";
  auto variables = without_sshd(place);
  write_script(place.folder / "tools/any-ssh", content_of(place.folder / "tools/ssh"));
  write_script(place.folder / "tools/ssh",
               "for HOST; do case $HOST in host-*) break ;; esac; done\n"
               "export HOST; exec any-ssh \"$@\"");
  Process job(launch({"-H", "host-a,host-b,host-c", "--nnodes", "2:3", "--rdzv-backend", "c10d",
                      "--max-restarts", "3", "--rdzv-conf", "last_call_timeout=0"}) +
                  shell("[ -e " + lost + " ] && exec touch " + again + "$HOST; " +
                        "[ $WORLD_SIZE = 3 ] && echo $PPID > " + up + "$HOST; exec yes"),
              variables);
  // Not by Process, which reads meanwhile.
  const auto wait_until = [](const std::function<bool()>& done) {
    const auto limit = std::chrono::steady_clock::now() + patience(60s);
    while (!done() && std::chrono::steady_clock::now() < limit) ::poll(nullptr, 0, 10);
    return done();
  };
  std::vector<int> launchers;
  REQUIRE(wait_until([&] {
    launchers.clear();
    for (const char* host : {"host-a", "host-b", "host-c"}) {
      launchers.push_back(std::atoi(content_of(up + host).c_str()));
    }
    return std::count(launchers.begin(), launchers.end(), 0) == 0;
  }));
  REQUIRE(wait_until([&] {
    return stdout_is_full(job.pid()) &&
           std::all_of(launchers.begin(), launchers.end(), stdout_is_full);
  }));

  std::ofstream(lost).close();
  ::kill(launchers[0], SIGKILL);

  CHECK(wait_until([&] {
    return std::filesystem::exists(again + "host-b") && std::filesystem::exists(again + "host-c");
  }));
  const ProcessResult result = job.wait(60s);
  INFO(result.output.substr(result.output.rfind("y\n") + 2));
  CHECK(result.status == 0);
  check_nothing_left(place);
}

TEST_CASE("17.3: whoever wants an end to the output of all hosts is told what was dropped") {
  const Place place;
  const ProcessResult result =
      job_with_reader(place, "kill -TERM $(cat pid); tail --pid=$(cat pid) -f /dev/null");
  INFO(result.output);
  CHECK(contains(result.output, "status 0\n"));
  CHECK(contains(result.output, "[ddprun] dropped "));
  check_nothing_left(place);
}

TEST_CASE("17.3: nodes of an elastic job read no platform of their hosts") {
  const Place place;
  auto variables = without_sshd(place);
  variables["PBS_NODEFILE"] = place.folder / "nodes";
  std::ofstream(place.folder / "nodes") << "host-a\nhost-b\nhost-c\n";

  const ProcessResult result =
      run(launch({"-H", "localhost,host-b", "--rdzv-backend", "c10d"}) + shell("echo started"), 60s,
          variables);

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "[localhost] started"));
  CHECK(contains(result.output, "[host-b] started"));
}

TEST_CASE("17.3: what has no effect is told once, and not by each host") {
  const Place place;
  const ProcessResult result =
      run(launch({"-H", "localhost,host-b", "--rdzv-conf", "rank=0"}) + shell("echo started"), 60s,
          without_sshd(place));
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(count_of(result.output, "--rdzv-conf rank has no effect") == 1);
}

TEST_CASE("17.3: what is wrong with the options is told here, once, before any host is asked") {
  const auto told = [](const std::vector<std::string>& options) {
    const ProcessResult result = run(launch(options) + shell("true"), 30s);
    CHECK(result.status == 2);
    return result.output;
  };
  CHECK(contains(told({"-H", "a,b", "--nnodes", "3"}), "there are 2 hosts"));
  CHECK(contains(told({"-H", "a,b", "--node-rank", "1"}), "starts all of them"));
  CHECK(contains(told({"-H", "a,-oProxyCommand=x"}), "expected a host"));
  CHECK(contains(told({"--hostfile", "/no/such/file"}), "cannot read"));
  CHECK(contains(told({"-H", "a", "--max-restarts", "x"}), "--max-restarts=x"));
  CHECK(contains(told({"-H", "a", "--ssh-options", "-i 'x"}), "not closed"));
  const ProcessResult plan =
      run(launch({"-H", "a:2,me@b", "--dry-run", "-x", "B=secret"}) + shell("true"), 30s);
  CHECK(plan.status == 0);
  CHECK(contains(plan.output, "ssh -o BatchMode=yes"));
  CHECK(contains(plan.output, "me@b"));
  CHECK_FALSE(contains(plan.output, "secret"));
}
