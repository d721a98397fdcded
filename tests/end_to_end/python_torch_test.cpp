// Unmodified Python torch workers on ddprun's store: the proof of the c10d wire protocol.
#include <unistd.h>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/testing/catch.h"

using namespace ddprun::testing;

namespace {

const std::string python = DDPRUN_SOURCE_DIR "/.deps/peer/bin/python";
const std::string worker = DDPRUN_SOURCE_DIR "/tests/end_to_end/gloo_worker.py";
constexpr const char* no_torch = "no Python torch in .deps/peer (scripts/setup --peer installs it)";

// Import of torch takes seconds, and two cores may be busy.
constexpr auto limit = 150s;

bool have_torch() { return ::access(python.c_str(), X_OK) == 0; }

}  // namespace

TEST_CASE("Python torch workers all-reduce over Gloo under ddprun") {
  if (!have_torch()) DDPRUN_SKIP(no_torch);

  const auto result = run(launch({"--standalone", "--nproc-per-node", "2", worker}), limit,
                          {{"PYTHON_EXEC", python}});

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "attempt 0 rank 0 sum 3"));
  CHECK(contains(result.output, "attempt 0 rank 1 sum 3"));
}

TEST_CASE("Python torch workers all-reduce over Gloo again after each of three restarts") {
  if (!have_torch()) DDPRUN_SKIP(no_torch);

  const auto result = run(launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "3",
                                  worker, "--kills", "3"}),
                          limit, {{"PYTHON_EXEC", python}});

  INFO(result.output);
  CHECK(result.status == 0);
  for (const char* attempt : {"0", "1", "2", "3"}) {
    CHECK(contains(result.output, std::string("attempt ") + attempt + " rank 0 sum 3"));
    CHECK(contains(result.output, std::string("attempt ") + attempt + " rank 1 sum 3"));
  }
}

TEST_CASE("Python torch workers open a store of their own when they are told to") {
  if (!have_torch()) DDPRUN_SKIP(no_torch);

  const auto result =
      run(launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "1", worker, "--kills",
                  "1"}),
          limit, {{"PYTHON_EXEC", python}, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"}});

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "attempt 1 rank 0 sum 3"));
  CHECK(contains(result.output, "attempt 1 rank 1 sum 3"));
}

TEST_CASE("Python torch workers of two nodes meet through the endpoint's store") {
  if (!have_torch()) DDPRUN_SKIP(no_torch);
  const std::uint16_t port = free_port();
  const std::map<std::string, std::string> variables = {{"PYTHON_EXEC", python}};

  Process host(launch_node(0, port, {}, {worker}), variables);
  Process other(launch_node(1, port, {}, {worker}), variables);

  const auto host_result = host.wait(limit);
  const auto other_result = other.wait(limit);
  INFO(host_result.output << other_result.output);
  CHECK(host_result.status == 0);
  CHECK(other_result.status == 0);
  CHECK(contains(other_result.output, "attempt 0 rank 1 sum 3"));
}
