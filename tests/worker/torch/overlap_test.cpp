// When gradients are reduced while backward computes.
#include "worker/torch/overlap.h"

#include "tests/testing/catch.h"

using namespace ddprun::worker;

TEST_CASE("reductions overlap with backward where there is something to hide",
          "[worker][overlap]") {
  // Two workers of a thread each on one host.
  CHECK_FALSE(overlap_pays({.world_size = 2, .local_world_size = 2, .cores = 2, .threads = 1}));
  CHECK_FALSE(overlap_pays({.world_size = 2, .local_world_size = 2, .cores = 3, .threads = 1}));
  CHECK(overlap_pays({.world_size = 2, .local_world_size = 2, .cores = 4, .threads = 1}));
  // All cores compute.
  CHECK_FALSE(overlap_pays({.world_size = 4, .local_world_size = 4, .cores = 64, .threads = 16}));
  CHECK(overlap_pays({.world_size = 4, .local_world_size = 4, .cores = 64, .threads = 15}));
  // A network.
  CHECK(overlap_pays({.world_size = 4, .local_world_size = 2, .cores = 2, .threads = 1}));
}
