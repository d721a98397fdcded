// What a reduction does about missing gradients, for every option and for first and later ones.
#include "tests/testing/catch.h"
#include "worker/torch/unused_parameters.h"

namespace ddprun::worker {
namespace {

TEST_CASE("a static graph finds unused parameters once, whatever else is asked for",
          "[worker][ddp][unused]") {
  CHECK(unused_parameters(false, false) == UnusedParameters::Refused);
  CHECK(unused_parameters(true, false) == UnusedParameters::FoundEveryTime);
  CHECK(unused_parameters(false, true) == UnusedParameters::FoundOnce);
  CHECK(unused_parameters(true, true) == UnusedParameters::FoundOnce);
}

TEST_CASE("the policy of a reduction", "[worker][ddp][unused]") {
  struct Case {
    UnusedParameters unused;
    bool first, looks, settles, drops;
  };
  for (const Case& c : {
           Case{UnusedParameters::Refused, true, false, true, false},
           Case{UnusedParameters::Refused, false, false, false, false},
           Case{UnusedParameters::FoundEveryTime, true, true, false, false},
           Case{UnusedParameters::FoundEveryTime, false, true, false, false},
           Case{UnusedParameters::FoundOnce, true, true, true, true},
           Case{UnusedParameters::FoundOnce, false, false, false, false},
       }) {
    const ReductionPolicy policy = reduction_policy(c.unused, c.first);
    INFO(policy.reason);
    CHECK(policy.looks_for_unused == c.looks);
    CHECK(policy.settles_order == c.settles);
    CHECK(policy.drops_unused == c.drops);
  }
}

}  // namespace
}  // namespace ddprun::worker
