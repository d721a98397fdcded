// Which keys of a store ranks read that look for each other.
#include "worker/peers/exchange.h"

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "rendezvous/hosted_store.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/text.h"
#include "worker/worker_env.h"

using namespace ddprun::worker;
using namespace std::chrono_literals;
using ddprun::testing::contains;
using ddprun::testing::patience;

namespace {

using Texts = std::vector<std::string>;

WorkerEnv rank_of_two(int rank, int term, std::uint16_t port) {
  WorkerEnv env;
  env.rank = rank;
  env.world_size = 2;
  env.restart_count = 7;
  env.term = term;
  env.master_port = port;
  env.use_agent_store = true;  // The test hosts it.
  return env;
}

}  // namespace

TEST_CASE("16.1: what was written in an older term is not read in a later one",
          "[worker][exchange]") {
  const ddprun::rendezvous::HostedStore store("127.0.0.1", 0);
  const auto exchange = [&](int rank, int term) {
    return make_store_exchange(rank_of_two(rank, term, store.port()), {});
  };
  // Says its word, and does not wait for the other.
  const auto says = [](AddressExchange& one, const std::string& text) {
    try {
      one.all_gather(text, std::chrono::steady_clock::now());
    } catch (const CommunicatorError& error) {
      return std::string(error.what());
    }
    return std::string("it has met all");
  };
  CHECK(contains(says(*exchange(0, 0), "old"), "rank 1 did not come"));
  CHECK(contains(says(*exchange(1, 1), "early"), "rank 0 did not come"));

  const auto first = exchange(0, 2), second = exchange(1, 2);
  const auto deadline = std::chrono::steady_clock::now() + patience(20s);
  auto met = std::async(std::launch::async, [&] { return first->all_gather("a", deadline); });
  CHECK(second->all_gather("b", deadline) == Texts{"a", "b"});
  CHECK(met.get() == Texts{"a", "b"});
}
