// Workers started by hand that wait for one that never comes: who hears why, and before what.
#include "worker/meeting.h"

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <thread>

#include "rendezvous/hosted_store.h"
#include "rendezvous/store_client.h"
#include "rendezvous/time_text.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "worker/host_places.h"

using namespace ddprun::worker;
using namespace std::chrono_literals;
using ddprun::rendezvous::HostedStore;
using ddprun::rendezvous::StoreClient;
using ddprun::testing::patience;

namespace {

std::string key(const char* name) { return std::string("ddprun/meeting/none/0/").append(name); }

WorkerEnv worker(int rank, int world_size, std::uint16_t port) {
  WorkerEnv env;
  env.rank = rank;
  env.world_size = world_size;
  env.master_port = port;
  env.use_agent_store = true;  // The test hosts it.
  env.local_world_size_known = env.local_rank_known = false;
  return env;
}

// What a worker that waits for `limit` says in the end.
std::future<std::string> meet(const WorkerEnv& env, std::chrono::milliseconds limit) {
  return std::async(std::launch::async, [env, limit] {
    CommunicatorOptions options;
    options.connect_timeout = limit;
    try {
      meet_workers(env, options);
    } catch (const CommunicatorError& error) {
      return std::string(error.what());
    }
    return std::string("it met them all");
  });
}

void wait_for_key(StoreClient& store, const std::string& key) {
  store.wait(std::vector{key}, patience(30s));
}

// What comes of it; a failure where nothing does.
std::string said(std::promise<std::string>& promise) {
  auto future = promise.get_future();
  REQUIRE(future.wait_for(patience(30s)) == std::future_status::ready);
  return future.get();
}

}  // namespace

TEST_CASE("14.17: a worker that waits to meet the others says for whom, and goes on",
          "[worker][meeting]") {
  std::optional<HostedStore> store(std::in_place, "127.0.0.1", std::uint16_t{0});
  const std::uint16_t port = store->port();
  store.reset();  // Rank 0, whose store it is, comes last.

  std::promise<std::string> at_first, later;
  std::atomic<int> told_first = 0, told_later = 0;
  CommunicatorOptions options;
  options.connect_timeout = 60s;
  options.slow_meeting = 20ms;
  options.on_slow_wait = [&](const std::string& text) {
    if (told_first++ == 0) at_first.set_value(text);
    if (text.find("did not come yet") != text.npos && told_later++ == 0) later.set_value(text);
  };
  auto rank_1 = std::async(std::launch::async, [&] {
    return meet_workers(worker(1, 3, port), options).group_world_size;
  });

  const std::string no_store = said(at_first);
  CHECK(no_store.find("rank 1 of 3 has waited for ") == 0);
  CHECK(no_store.find("Connection refused") != no_store.npos);
  CHECK(no_store.find("it gives up after 60 s (CommunicatorOptions::connect_timeout") !=
        no_store.npos);

  store.emplace("127.0.0.1", port);
  const std::string others = said(later);
  CHECK(others.find("rank 0, rank 2 of 3 did not come yet") != others.npos);

  StoreClient client("127.0.0.1", port);
  for (const char* rank : {"rank/0", "rank/2"}) {
    client.set(key(rank), to_text(WorkerNote{.host = "h", .world_size = 3}));
  }
  CHECK(rank_1.get() == 2);
}

TEST_CASE("a worker that gives up says why even when rank 0 heard it and is gone at once",
          "[worker][meeting]") {
  std::optional<HostedStore> store(std::in_place, "127.0.0.1", std::uint16_t{0});
  StoreClient rank_0("127.0.0.1", store->port());
  rank_0.set(key("rank/0"), to_text(WorkerNote{.host = "h", .world_size = 4}));

  const auto limit = patience(300ms);
  auto rank_2 = meet(worker(2, 4, store->port()), limit);
  wait_for_key(rank_0, key("rank/3"));  // The last place that it fills.
  store.reset();

  CHECK(rank_2.get().find("rank 1, rank 3 of 4 did not come within " +
                          ddprun::rendezvous::time_text(limit)) == 0);
}

TEST_CASE("a worker that gives up while another does tells the other's verdict, whole",
          "[worker][meeting]") {
  HostedStore store("127.0.0.1", std::uint16_t{0});
  StoreClient rank_0("127.0.0.1", store.port());
  rank_0.set(key("rank/0"), to_text(WorkerNote{.host = "h", .world_size = 4}));
  rank_0.set(key("verdict"), "rank 1, rank 3 of 4 did not come");
  rank_0.set(key("rank/1"), "taken by rank 0, which has not come to rank 3's place yet");

  CHECK(meet(worker(2, 4, store.port()), patience(300ms)).get() ==
        "rank 1, rank 3 of 4 did not come");
}
