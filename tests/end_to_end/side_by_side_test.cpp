// Jobs on one machine at the same time: they do not meet, or are told why not.
#include "tests/end_to_end/job_place.h"

using namespace ddprun::testing;

TEST_CASE("two plain jobs run at the same time") {
  const Place place;
  // Each waits for the other one's worker.
  const auto job = [&](const std::string& own, const std::string& other) {
    const std::string folder = place.folder.path();
    return launch({}) + shell(": > " + folder + "/" + own + "; until test -e " + folder + "/" +
                              other + "; do sleep 0.01; done");
  };
  Process first(job("first", "second"), place.variables());
  Process second(job("second", "first"), place.variables());

  CHECK(first.wait(20s).status == 0);
  CHECK(second.wait(20s).status == 0);
  check_nothing_left(place);
}

TEST_CASE("a port in use is named with its holder") {
  const Place place;
  const std::string port = std::to_string(free_port());
  Process holder(launch({"--master-port", port}) + shell("echo up; exec sleep 300"),
                 place.variables());
  REQUIRE(holder.wait_for_output("up", 20s));

  const auto refused = run(launch({"--master-port", port, "/bin/true"}), 20s);

  INFO(refused.output);
  CHECK(refused.status == 70);
  CHECK(contains(refused.output, "port " + port));
  CHECK(contains(refused.output, "pid " + std::to_string(holder.pid())));
}

TEST_CASE("a second job at a living job's endpoint is refused at once") {
  const Place place;
  const std::string port = std::to_string(free_port());
  const auto job = [&](const std::string& id) {
    return launch({"--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                   "localhost:" + port, "--rdzv-id", id}) +
           shell("echo \"up $RANK\"; exec sleep 300");
  };
  Process first(job("first"), place.variables()), peer(job("first"), place.variables());
  const auto up = [](Process& node) { return node.wait_for_output("up ", 20s); };
  REQUIRE(up(first));
  REQUIRE(up(peer));

  const auto elastic = run(job("second"), 20s);
  const auto fixed = run(launch_node(1, static_cast<std::uint16_t>(std::stoi(port)),
                                     {"--rdzv-id", "third"}, {"/bin/true"}),
                         20s);

  INFO(elastic.output << fixed.output);
  CHECK(elastic.status == 73);
  const double at_once = std::chrono::duration<double>(patience(5s)).count();
  CHECK(elastic.seconds < at_once);
  CHECK(fixed.status == 73);
  CHECK(fixed.seconds < at_once);
  CHECK_FALSE(contains(elastic.output, "up "));
  // The first job has not noticed.
  CHECK_FALSE(first.wait(0ms).ended);
  CHECK_FALSE(peer.wait(0ms).ended);
}
