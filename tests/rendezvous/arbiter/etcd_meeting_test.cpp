// Who finds whom in a real etcd, and what each of them decides.
#include "rendezvous/arbiter/etcd_meeting.h"

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/catch.h"
#include "tests/testing/etcd_server.h"
#include "tests/testing/patience.h"
#include "tests/testing/text.h"

using namespace ddprun::rendezvous;
using namespace ddprun::testing;
using std::chrono::seconds;

namespace {

Leader leader_of(const std::string& id, int term, int port = 29'500) {
  return {.seat = {.node_id = id, .host = "host-" + id, .address = "10.0.0.1", .port = port},
          .term = term};
}

EtcdMeeting meeting_at(const EtcdServer& server, seconds lasts = seconds(600)) {
  return {{.urls = {server.url()}}, "run", "etcd at " + server.url(), patience(seconds(4)), lasts};
}

#define SKIP_WITHOUT_ETCD() \
  if (const auto why = EtcdServer::unavailable(); !why.empty()) DDPRUN_SKIP(why)

}  // namespace

TEST_CASE("16.1: a new node leads where nobody is named, and others wait for somebody",
          "[rendezvous][arbiter][meeting]") {
  CHECK(decide_meeting({}, "b", /*is_new=*/true) == Meeting::Lead);
  CHECK(decide_meeting({}, "b", /*is_new=*/false) == Meeting::LookAgain);
  for (const bool is_new : {true, false}) {
    CHECK(decide_meeting(leader_of("a", 0), "b", is_new) == Meeting::Follow);
    // It does not listen yet.
    CHECK(decide_meeting(leader_of("a", 0, 0), "b", is_new) == Meeting::LookAgain);
  }
  // It did not hear that it was first.
  CHECK(decide_meeting(leader_of("b", 0, 0), "b", /*is_new=*/true) == Meeting::Lead);
}

TEST_CASE("16.1: a coordinator's key gives way to the later term, and to who has begun anew",
          "[rendezvous][arbiter][meeting]") {
  const Leader self = leader_of("b", 1);
  CHECK(decide_upkeep({}, self) == Upkeep::Put);
  CHECK(decide_upkeep(self, self) == Upkeep::Nothing);
  CHECK(decide_upkeep(leader_of("b", 0), self) == Upkeep::Replace);
  CHECK(decide_upkeep(leader_of("b", 1, 0), self) == Upkeep::Replace);
  CHECK(decide_upkeep(leader_of("a", 0), self) == Upkeep::Replace);
  CHECK(decide_upkeep(leader_of("a", 1), self) == Upkeep::GiveWay);
  CHECK(decide_upkeep(leader_of("a", 2), self) == Upkeep::GiveWay);
}

TEST_CASE("16.1: of many nodes that find nobody in etcd one leads, and the others find it",
          "[rendezvous][arbiter][meeting][etcd]") {
  SKIP_WITHOUT_ETCD();
  EtcdServer server;
  std::vector<char> led(4, 0);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < led.size(); ++i) {
    threads.emplace_back([&, i] {
      led[i] = meeting_at(server).put(leader_of(std::string(1, static_cast<char>('a' + i)), 0));
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(std::count(led.begin(), led.end(), 1) == 1);
  const auto first = std::find(led.begin(), led.end(), 1) - led.begin();
  EtcdMeeting seeker = meeting_at(server);
  CHECK(seeker.look() == leader_of(std::string(1, static_cast<char>('a' + first)), 0));
  CHECK(seeker.local_address() == "127.0.0.1");
}

TEST_CASE("16.1: the coordinator of a later term replaces the one before, which hears of it",
          "[rendezvous][arbiter][meeting][etcd]") {
  SKIP_WITHOUT_ETCD();
  EtcdServer server;
  EtcdMeeting a = meeting_at(server), b = meeting_at(server), seeker = meeting_at(server);
  const Leader first = leader_of("a", 0), second = leader_of("b", 1);
  REQUIRE(a.put(leader_of("a", 0, 0)));
  CHECK(a.put(leader_of("a", 0, 0)));  // Once more.
  CHECK_FALSE(b.put(leader_of("b", 0, 0)));
  CHECK(a.keep(first).what == Upkeep::Replace);  // Now with its port.
  CHECK(seeker.look() == first);
  CHECK(a.keep(first).what == Upkeep::Nothing);

  const auto took = b.keep(second);
  CHECK(took.what == Upkeep::Replace);
  CHECK(took.named == first);
  CHECK(seeker.look() == second);
  const auto over = a.keep(first);
  CHECK(over.what == Upkeep::GiveWay);
  CHECK(over.named == second);
  a.remove(first);
  CHECK(seeker.look() == second);
  b.remove(second);
  CHECK_FALSE(seeker.look());
}

TEST_CASE("16.1: a coordinator that died is named no longer than its lease",
          "[rendezvous][arbiter][meeting][etcd]") {
  SKIP_WITHOUT_ETCD();
  EtcdServer server;
  EtcdMeeting a = meeting_at(server, seconds(2)), b = meeting_at(server);
  REQUIRE(a.put(leader_of("a", 0)));
  const auto end = std::chrono::steady_clock::now() + patience(seconds(60));
  while (b.look() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  CHECK(b.put(leader_of("b", 0)));
  b.remove(leader_of("b", 0));
  // It was only held up: it is named again, by another lease.
  CHECK(a.keep(leader_of("a", 0)).what == Upkeep::Put);
  CHECK(b.look() == leader_of("a", 0));
}

TEST_CASE("16.1: a coordinator is still named when etcd was away",
          "[rendezvous][arbiter][meeting][etcd]") {
  SKIP_WITHOUT_ETCD();
  EtcdServer server;
  EtcdMeeting a = meeting_at(server);
  const Leader self = leader_of("a", 0);
  REQUIRE(a.put(self));
  server.kill();
  CHECK_THROWS_AS(a.keep(self), ArbiterError);
  server.start();
  CHECK(a.keep(self).what == Upkeep::Nothing);
  CHECK(meeting_at(server).look() == self);
}

TEST_CASE("16.1: a key that is none of ours is named, and nobody leads over it",
          "[rendezvous][arbiter][meeting][etcd]") {
  SKIP_WITHOUT_ETCD();
  EtcdServer server;
  EtcdClient(EtcdServers{.urls = {server.url()}}, "etcd", patience(seconds(4)))
      .run(EtcdTransaction().put("/ddprun/run/leader", "somebody's"));
  EtcdMeeting a = meeting_at(server);
  try {
    a.look();
    FAIL("it was taken");
  } catch (const ArbiterError& error) {
    CHECK(contains(error.what(), "the key /ddprun/run/leader names no coordinator but somebody's"));
  }
  CHECK_THROWS_AS(a.keep(leader_of("a", 0)), ArbiterError);
}
