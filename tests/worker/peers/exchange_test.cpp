// Which keys of a store ranks read that look for each other.
#include "worker/peers/exchange.h"

#include <array>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/hosted_store.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/text.h"
#include "tests/worker/own_page.h"
#include "worker/cpu/cpu_communicator.h"
#include "worker/worker_env.h"

using namespace ddprun::worker;
using namespace std::chrono_literals;
using ddprun::testing::contains;
using ddprun::testing::message_of;
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

// Rank `job_rank` of a job of four, in its half, which has the even or the odd ones.
WorkerEnv in_half(int job_rank, std::uint16_t port) {
  WorkerEnv env = rank_of_two(job_rank / 2, 0, port);
  env.job_rank = job_rank;
  env.job_world_size = 4;
  return env;
}

CommunicatorOptions named(const std::string& group) {
  CommunicatorOptions options;
  options.connect_timeout = patience(20s);
  options.group = group;
  return options;
}

std::string half_name(int job_rank) { return job_rank % 2 == 0 ? "even" : "odd"; }

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
  // Nor what they said when they met before.
  CHECK(contains(says(*first, "again"), "rank 1 did not come"));
}

TEST_CASE("the next communicator of the same ranks reads nothing of the one before",
          "[worker][exchange]") {
  const ddprun::rendezvous::HostedStore store("127.0.0.1", 0);
  const auto make = [&](int rank) {
    return make_store_exchange(rank_of_two(rank, 0, store.port()), {});
  };
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto other = make(1);
  CHECK_THROWS_AS(other->all_gather("b", now()), CommunicatorError);
  CHECK(make(0)->all_gather("a", now() + patience(20s)) == Texts{"a", "b"});
  CHECK(contains(message_of<CommunicatorError>([&] { make(0)->all_gather("next", now()); }),
                 "rank 1 did not come"));
}

TEST_CASE("a rank's address is its interface's, else what it was told, else where it is seen",
          "[worker][exchange]") {
  const ddprun::rendezvous::HostedStore store("127.0.0.1", 0);
  WorkerEnv env = rank_of_two(0, 0, store.port());
  CommunicatorOptions options;
  CHECK(make_store_exchange(env, options)->local_address() == "127.0.0.1");
  env.own_address = "127.0.0.9";
  CHECK(make_store_exchange(env, options)->local_address() == "127.0.0.9");
  options.interface = "127.0.0.1";
  CHECK(make_store_exchange(env, options)->local_address() == "127.0.0.1");
}

// Its launcher must not take it for the rank that is behind: with --on-stall fail that is killed.
TEST_CASE("who waits for a peer under a launcher says so, and for whom", "[worker][exchange]") {
  const ddprun::testing::OwnPage page;
  const ddprun::rendezvous::HostedStore store("127.0.0.1", 0);
  std::promise<std::string> told;
  CommunicatorOptions options;
  options.slow_meeting = 1ms;
  options.on_slow_wait = [&, first = true](const std::string& text) mutable {
    if (std::exchange(first, false)) told.set_value(text);
  };
  const auto early = make_store_exchange(rank_of_two(0, 0, store.port()), options);
  const auto late = make_store_exchange(rank_of_two(1, 0, store.port()), {});
  const auto deadline = std::chrono::steady_clock::now() + patience(20s);
  auto met = std::async(std::launch::async, [&] { return early->all_gather("a", deadline); });
  const std::string text = told.get_future().get();
  CHECK(page.tells_of_a_wait());
  CHECK(contains(text, "rank 0 of 2 has waited"));
  CHECK(contains(text, "rank 1 did not come yet"));
  late->all_gather("b", deadline);
  CHECK(met.get() == Texts{"a", "b"});
}

// Each counts its own meetings: the late one would look for the others in the first, for ever.
TEST_CASE("a rank that has waited in vain is told to end, and not to wait in vain again",
          "[worker][exchange]") {
  const ddprun::rendezvous::HostedStore store("127.0.0.1", 0);
  const auto meet = [&](int rank, int term) {
    return message_of<CommunicatorError>([&] {
      make_store_exchange(rank_of_two(rank, term, store.port()), {})
          ->all_gather("a", std::chrono::steady_clock::now());
    });
  };
  CHECK(contains(meet(0, 0), "rank 1 did not come"));
  CHECK(contains(meet(0, 0), "an earlier meeting of this rank failed (rank 1 did not come"));
  CHECK(contains(meet(0, 1), "rank 1 did not come"));  // The next attempt has its own.
}

TEST_CASE("two groups of a job sum over their own ranks, whoever of them comes first",
          "[worker][exchange]") {
  const ddprun::rendezvous::HostedStore store("127.0.0.1", 0);
  std::array<std::unique_ptr<AddressExchange>, 4> exchanges;
  // Rank 0 of the one and rank 1 of the other are there before the rest, which is when they took
  // each other for their peers.
  for (const int job_rank : {0, 3, 1, 2}) {
    exchanges.at(static_cast<std::size_t>(job_rank)) =
        make_store_exchange(in_half(job_rank, store.port()), named(half_name(job_rank)));
  }
  std::array<float, 4> sums{1, 10, 100, 1000};
  std::array<std::string, 4> errors;
  std::vector<std::thread> ranks;
  for (std::size_t job_rank = 0; job_rank < 4; ++job_rank) {
    ranks.emplace_back([&, job_rank] {
      errors[job_rank] = message_of<CommunicatorError>([&] {
        CpuCommunicatorOptions options;
        options.common = named(half_name(static_cast<int>(job_rank)));
        const auto comm = connect_cpu_communicator(static_cast<int>(job_rank / 2), 2, 0,
                                                   *exchanges[job_rank], options);
        comm->all_reduce(&sums[job_rank], 1, DataType::Float32, ReduceOp::Sum);
        comm->barrier();
      });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(errors == std::array<std::string, 4>{});
  CHECK(sums == std::array<float, 4>{101, 1010, 101, 1010});
}

TEST_CASE("some of a job's ranks need a name of their own", "[worker][exchange]") {
  const ddprun::rendezvous::HostedStore store("127.0.0.1", 0);
  const auto make = [&](const WorkerEnv& env, const std::string& group) {
    return message_of<CommunicatorError>([&] { make_cpu_communicator(env, named(group)); });
  };
  const WorkerEnv env = in_half(1, store.port());
  CHECK(make(env, "") ==
        "rank 0 of 2 is rank 1 of 4 in its job: a communicator of some of a job's ranks needs a "
        "name that no other group of them has (CommunicatorOptions::group); where its run_id, or a "
        "store of its own, keeps it apart, reset() job_rank and job_world_size instead");
  for (const std::string& name : {std::string("a b"), std::string("a/b"), std::string(65, 'a')}) {
    CHECK(contains(make(env, name), "cannot be the name of a group of ranks"));
  }
  CHECK_NOTHROW(check_group(env, named(std::string(60, 'a') + "-_.,")));
  WorkerEnv unmet = env;
  unmet.local_world_size_known = false;
  CHECK(contains(make(unmet, "odd"), "change rank and world size of what meet_workers() returns"));

  const auto first = make_store_exchange(in_half(0, store.port()), named("halves"));
  CHECK(make(env, "halves") ==
        "rank 1 of the job cannot be rank 0 of the group \"halves\": rank 0 of the job is; give "
        "each group of ranks a name of its own (CommunicatorOptions::group)");
}

TEST_CASE("worlds that their run_id keeps apart need no name once they are no job's",
          "[worker][exchange]") {
  const ddprun::rendezvous::HostedStore store("127.0.0.1", 0);
  std::array<std::string, 4> errors;
  std::array<float, 4> sums{1, 10, 100, 1000};
  std::vector<std::thread> ranks;
  for (const int job_rank : {0, 1, 2, 3}) {
    ranks.emplace_back([&, job_rank] {
      const auto i = static_cast<std::size_t>(job_rank);
      errors[i] = message_of<CommunicatorError>([&] {
        WorkerEnv env = in_half(job_rank, store.port());
        env.run_id = half_name(job_rank);
        env.job_rank.reset();
        env.job_world_size.reset();
        const auto comm = make_cpu_communicator(env, named(""));
        comm->all_reduce(&sums[i], 1, DataType::Float32, ReduceOp::Sum);
        comm->barrier();
      });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(errors == std::array<std::string, 4>{});
  CHECK(sums == std::array<float, 4>{101, 1010, 101, 1010});
}

TEST_CASE("a world of one needs no name in any job", "[worker][exchange]") {
  WorkerEnv env = in_half(3, 1);
  env.rank = 0;
  env.world_size = 1;
  CHECK(message_of<CommunicatorError>([&] { check_group(env, {}); }).empty());
}

TEST_CASE("ranks of one group that were told different sizes are told so", "[worker][exchange]") {
  const ddprun::rendezvous::HostedStore store("127.0.0.1", 0);
  WorkerEnv other = in_half(2, store.port());
  other.world_size = 3;
  const auto second = make_store_exchange(other, named("even"));
  // It gives its address, and waits for a third one.
  auto waits = std::async(std::launch::async, [&] {
    CpuCommunicatorOptions options;
    options.common = named("even");
    options.common.connect_timeout = patience(1s);
    return message_of<CommunicatorError>(
        [&] { connect_cpu_communicator(1, 3, 0, *second, options); });
  });
  const std::string error = message_of<CommunicatorError>(
      [&] { make_cpu_communicator(in_half(0, store.port()), named("even")); });
  INFO(error);
  CHECK(contains(error,
                 "rank 0 is one of 2 in the group \"even\", and rank 1 is one of 3 in the group "
                 "\"even\": all ranks of a communicator must give the same world size and group"));
  CHECK(contains(waits.get(), "in the group \"even\" could not meet the others"));
}
