// What is set aside before strangers get any.
#include "launcher/machine/descriptor_budget.h"

#include "tests/testing/catch.h"

using namespace ddprun::launcher;

TEST_CASE("15.5: what a restart needs is set aside before anybody else gets descriptors",
          "[launcher][descriptors]") {
  for (const std::size_t limit : {1'024u, 4'096u, 24'000u, 1'048'576u}) {
    for (const int workers : {1, 8, 32}) {
      const DescriptorBudget budget = share_descriptors(limit, workers, 4);
      INFO(limit << " for " << workers);
      const std::size_t given = budget.store_connections + 2 * budget.strangers;
      CHECK(given + 128 + 16 * static_cast<std::size_t>(workers) <= limit);
      CHECK(budget.store_connections > budget.strangers);
    }
  }
}

TEST_CASE("one host of several has half of the store's connections, whatever the limit",
          "[launcher][descriptors]") {
  for (const std::size_t limit : {64u, 1'024u, 24'000u, 1'048'576u}) {
    const DescriptorBudget several = share_descriptors(limit, 8, 4);
    CHECK(several.store_connections_per_address == several.store_connections / 2);
    const DescriptorBudget alone = share_descriptors(limit, 8, 1);
    CHECK(alone.store_connections_per_address == alone.store_connections);
  }
}

TEST_CASE("a high limit gives no more than the bounds of the store and of strangers",
          "[launcher][descriptors]") {
  const DescriptorBudget budget = share_descriptors(1'048'576, 8, 64);
  CHECK(budget.store_connections == 65'536);
  CHECK(budget.strangers == 1'024);
}

TEST_CASE("a limit that is too low leaves a little to everybody", "[launcher][descriptors]") {
  const DescriptorBudget budget = share_descriptors(64, 8, 4);
  CHECK(budget.store_connections == 64);
  CHECK(budget.strangers == 16);
}

TEST_CASE("14.3: too few descriptors are named before anything waits", "[launcher][descriptors]") {
  CHECK(descriptors_problem(16, 19, 1) ==
        "the limit of open files is 19, of which 16 are free, and a launcher with 1 worker needs "
        "17 file descriptors at the very least: raise it (ulimit -n)");
  CHECK(descriptors_problem(17, 20, 1).empty());
  CHECK_FALSE(descriptors_problem(17, 20, 2).empty());
}

TEST_CASE("a host that cannot have a connection of each node says so before it waits for them",
          "[launcher][descriptors]") {
  CHECK(nodes_problem(12, 30, 1, 10) ==
        "the limit of open files is 30, of which 12 are free, and the host of a job of 10 nodes "
        "needs 13 file descriptors at the very least, one for each other node among them: raise it "
        "(ulimit -n)");
  CHECK(nodes_problem(13, 31, 1, 10).empty());
  CHECK_FALSE(nodes_problem(13, 31, 2, 10).empty());
  CHECK_FALSE(nodes_problem(13, 31, 1, 11).empty());
}

TEST_CASE("more workers than the store has connections for are named with the way out",
          "[launcher][descriptors]") {
  // 512 nodes with 8 workers each, where no more than 4,096 files may be open.
  const DescriptorBudget budget = share_descriptors(4'096, 8, 512);
  CHECK(store_problem(budget, 512 * 8) ==
        "this host's limit of open files leaves 2112 connections for the job's store, and 4096 "
        "workers are to use it, each with one at least, as PyTorch's do: raise the limit "
        "(ulimit -n)");
  CHECK(store_problem(budget, 2'112).empty());
  CHECK(store_problem(share_descriptors(65'536, 8, 512), 512 * 8).empty());
}
