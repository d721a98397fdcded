// Whether another attempt follows, as a worker's node knows it.
#include "launcher/attempt_choices.h"

#include "tests/testing/catch.h"

using namespace ddprun::launcher;

TEST_CASE("16.3: a restart is left while the coordinator has not used them all", "[launcher]") {
  CHECK_FALSE(restart_left({.max_restarts = 0, .restarts_used = 0}));
  CHECK(restart_left({.attempt = 7, .max_restarts = 3, .restarts_used = 2}));
  CHECK_FALSE(restart_left({.attempt = 1, .max_restarts = 3, .restarts_used = 3}));
  // An older one does not say; so many attempts cannot have used more.
  CHECK(restart_left({.attempt = 2, .max_restarts = 3}));
  CHECK_FALSE(restart_left({.attempt = 3, .max_restarts = 3}));
}
