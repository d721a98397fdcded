// Our --numa-binding against that of torch, where Python torch is there.
#include <filesystem>

#include "tests/testing/catch.h"
#include "tests/testing/process.h"

using namespace ddprun::testing;
using namespace std::chrono_literals;

TEST_CASE("workers get the CPUs that torch would give them, on many machines", "[oracle]") {
  const std::string python = DDPRUN_SOURCE_DIR "/.deps/peer/bin/python";
  if (!std::filesystem::exists(python)) DDPRUN_SKIP("no Python torch in .deps/peer");
  const TemporaryFolder folder;

  const auto result = run({python, DDPRUN_SOURCE_DIR "/tests/launcher/machine/cpu_oracle.py",
                           DDPRUN_PRINT_PLACEMENT, folder.path()},
                          150s);

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(result.output.find("binding ok\n") != std::string::npos);
}
