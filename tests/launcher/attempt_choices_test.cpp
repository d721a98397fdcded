// What an attempt and its plan say alike, as a worker's node knows it.
#include "launcher/attempt_choices.h"

#include <map>
#include <string>
#include <utility>

#include "launcher/stall/nccl_ras.h"
#include "tests/testing/catch.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;

namespace {

EnvironmentLookup environment(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

}  // namespace

TEST_CASE("16.3: a restart is left while the coordinator has not used them all", "[launcher]") {
  CHECK_FALSE(restart_left({.max_restarts = 0, .restarts_used = 0}));
  CHECK(restart_left({.attempt = 7, .max_restarts = 3, .restarts_used = 2}));
  CHECK_FALSE(restart_left({.attempt = 1, .max_restarts = 3, .restarts_used = 3}));
  // An older one does not say; so many attempts cannot have used more.
  CHECK(restart_left({.attempt = 2, .max_restarts = 3}));
  CHECK_FALSE(restart_left({.attempt = 3, .max_restarts = 3}));
}

TEST_CASE("another attempt may follow by a restart, or where nodes come and go", "[launcher]") {
  LaunchOptions fixed, elastic;
  elastic.backend = RendezvousBackend::C10d;
  elastic.nnodes_max = 2;
  CHECK_FALSE(another_may_follow(fixed, {.max_restarts = 0}));
  CHECK(another_may_follow(fixed, {.max_restarts = 1}));
  CHECK(another_may_follow(elastic, {.max_restarts = 0}));
  elastic.nnodes_max = 1;
  CHECK_FALSE(another_may_follow(elastic, {.max_restarts = 0}));
  fixed.nnodes_max = 2;
  CHECK_FALSE(another_may_follow(fixed, {.max_restarts = 0}));
}

TEST_CASE("word of a lost peer is waited for until a silent node would be known", "[launcher]") {
  LaunchOptions options;
  options.heartbeat_timeout = 7s;
  CHECK(peer_word_limit(options) == 5s);
  options.nnodes_max = 2;
  CHECK(peer_word_limit(options) == 19s);
}

TEST_CASE("workers have a store of their own only on one node that wants one", "[launcher]") {
  LaunchOptions options;
  options.worker_store = true;
  CHECK(own_store_host(options, {.group_world_size = 1}) == "127.0.0.1");
  CHECK_FALSE(own_store_host(options, {.group_world_size = 2}));
  options.local_addr = "10.0.0.7";
  CHECK(own_store_host(options, {.group_world_size = 1}) == "10.0.0.7");
  options.worker_store = false;
  CHECK_FALSE(own_store_host(options, {.group_world_size = 1}));
}

TEST_CASE("NCCL is asked of stalls, and given an address, unless the user says otherwise",
          "[launcher]") {
  LaunchOptions options;
  options.stall_watch = true;
  const auto nothing = environment({});
  CHECK(asks_nccl_ras(options, nothing));
  CHECK(gives_ras_address(options, nothing, 1));
  CHECK_FALSE(gives_ras_address(options, nothing, 0));
  const auto own = environment({{std::string(ras_address_variable), "localhost:1"}});
  CHECK(asks_nccl_ras(options, own));
  CHECK_FALSE(gives_ras_address(options, own, 1));
  const auto off = environment({{"NCCL_RAS_ENABLE", "0"}});
  CHECK_FALSE(asks_nccl_ras(options, off));
  CHECK_FALSE(gives_ras_address(options, off, 1));
  options.stall_watch = false;
  CHECK_FALSE(asks_nccl_ras(options, nothing));
}

TEST_CASE("a round may have fewer workers here than the command line", "[launcher]") {
  LaunchOptions options;
  options.nproc_per_node = 4;
  CHECK(workers_here(options, {.nproc = 3}) == 3);
  CHECK(workers_here(options, {}) == 4);  // An older coordinator does not say.
}
