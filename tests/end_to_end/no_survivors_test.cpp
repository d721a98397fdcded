// No process outlives its job: not when the launcher is killed at any moment, not when it has left
// the worker's session, and as process 1 of a container the launcher reaps what nobody else does.
#include <csignal>

#include "tests/end_to_end/job_place.h"
#include "tests/testing/held_signals.h"

using namespace ddprun::testing;

namespace {

// One that is just being executed shows no environment, by which it is known.
bool wait_for_processes(Process& job, const Place& place, std::size_t count) {
  return job.wait_until([&] { return place.processes().size() >= count; });
}

}  // namespace

TEST_CASE("processes that left the worker's session end with the job") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  const Place place;
  Process job(two_workers({"--shutdown-timeout", "0.4"}, start_a_stray + say_up_and_wait),
              place.variables());
  REQUIRE(wait_for_both_up(job));
  const int stray = number_after(job.output(), "stray ");
  REQUIRE_FALSE(wait_until_gone({stray}, 0s));

  job.send_signal(SIGTERM);

  const auto result = job.wait(30s);
  INFO(result.output);
  CHECK(result.status == 75);
  check_nothing_left(place);
}

TEST_CASE("no process outlives a launcher killed while it waits for nodes") {
  const Place place;
  Process job(launch_node(0, free_port(), {}, {"/bin/true"}), place.variables());
  REQUIRE(job.wait_for_output("waiting for node 1", 20s));

  job.send_signal(SIGKILL);

  CHECK(place.is_deserted(10s));
}

TEST_CASE("no process outlives a launcher whose node is being checked") {
  const Place place;
  Process job(launch({"--standalone", "--node-check",
                      "setsid sleep 300 & sleep 300 & echo asks >&2; wait", "/bin/true"}),
              place.variables());
  REQUIRE(job.wait_for_output("waiting for this node's check", 20s));
  REQUIRE(wait_for_processes(job, place, 4));  // The launcher, the shell, two programs.
  SECTION("killed") { job.send_signal(SIGKILL); }
  SECTION("stopped") {
    job.send_signal(SIGTERM);
    CHECK(job.wait(20s).status == 75);
  }
  CHECK(place.is_deserted(10s));
}

TEST_CASE("no process outlives a launcher killed in the middle of its start") {
  for (const int started : {1, 4, 16, 31}) {
    INFO("killed when " << started << " of 32 workers were started");
    const Place place;
    Sayings sayings(place.folder / "say");
    auto variables = place.variables();
    variables["SAY"] = place.folder / "say";
    Process job(launch({"--standalone", "--nproc-per-node", "32"}) +
                    shell(deaf + "sleep 300 & echo up > \"$SAY\"; sleep 300"),
                variables);
    REQUIRE(sayings.wait_for_lines(started, 30s));

    job.send_signal(SIGKILL);

    CHECK(place.is_deserted(10s));
  }
}

TEST_CASE("no process outlives a launcher killed while workers run, strays included") {
  const Place place;
  Process job(two_workers({}, deaf + start_a_stray + say_up_and_wait), place.variables());
  REQUIRE(wait_for_both_up(job));
  REQUIRE(wait_for_processes(job, place, 5));  // The launcher, two workers, two strays.

  job.send_signal(SIGKILL);

  CHECK(place.is_deserted(10s));
}

TEST_CASE("no process outlives a launcher killed while it stops its workers") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  const Place place;
  Process job(two_workers({}, deaf + start_a_stray + say_up_and_wait), place.variables());
  REQUIRE(wait_for_both_up(job));
  job.send_signal(SIGTERM);
  REQUIRE(job.wait_for_output("stopping 2 workers", 20s));

  job.send_signal(SIGKILL);

  CHECK(place.is_deserted(10s));
}

TEST_CASE("no process outlives a launcher killed after a worker that is gone") {
  const Place place;
  Process job(two_workers({}, leave_a_child), place.variables());
  REQUIRE(job.wait_for_output("up 1", 20s));
  REQUIRE(job.wait_for_output(".\n", 20s));
  REQUIRE(wait_until_gone({number_after(job.output(), " of ")}, 20s));

  job.send_signal(SIGKILL);

  CHECK(place.is_deserted(10s));
}

TEST_CASE("as process 1 of a container the launcher leaves alone what no worker has started") {
  const std::vector<std::string> container = {"unshare", "--pid", "--fork", "--mount-proc",
                                              "--kill-child"};
  if (run(container + std::vector<std::string>{"true"}, 20s).status != 0) {
    DDPRUN_SKIP("this user may not make a pid namespace (unshare --pid --mount-proc)");
  }
  // Without the variable that a worker's processes have, as what "kubectl exec" starts.
  for (const std::string environment : {"env -i ", ""}) {
    const TemporaryFolder folder;
    const std::string there = folder / "there";
    const auto result = run(
        container + launch({"--standalone", "--max-restarts", "1", "--shutdown-timeout", "0.5"}) +
            shell(environment + "setsid sh -c 'trap : TERM; touch " + there +
                  "; while :; do sleep 0.1; done' > /dev/null 2>&1 & until test -e " + there +
                  "; do sleep 0.05; done; rm " + there +
                  "; exit $((1 - TORCHELASTIC_RESTART_COUNT))"),
        60s);
    INFO(result.output);
    CHECK(result.status == 0);
    CHECK(contains(result.output, "which a worker left behind") == environment.empty());
  }
}

TEST_CASE("as process 1 of a container the launcher leaves no zombies") {
  const std::vector<std::string> container = {"unshare", "--pid", "--fork", "--mount-proc",
                                              "--kill-child"};
  if (run(container + std::vector<std::string>{"true"}, 20s).status != 0) {
    DDPRUN_SKIP("this user may not make a pid namespace (unshare --pid --mount-proc)");
  }
  const Place place;
  // Twenty orphans end; then the worker looks until no process is a zombie any more.
  const std::string worker =
      "for i in $(seq 20); do (sh -c \": > $ORPHANS/$i\" &); done; "
      "until [ $(ls $ORPHANS | wc -l) = 20 ]; do sleep 0.01; done; "
      "until ! grep -qs '^State:.Z' /proc/[0-9]*/status; do sleep 0.01; done; "
      "echo \"process 1 is $(cat /proc/1/comm), no zombies\"";
  auto variables = place.variables();
  variables["ORPHANS"] = place.folder / "orphans";
  REQUIRE(std::filesystem::create_directory(place.folder / "orphans"));

  const auto result =
      run(container + launch({"--standalone", "--nproc-per-node", "1"}) + shell(worker), 30s,
          variables);

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "process 1 is ddprun, no zombies"));
  check_nothing_left(place);
}
