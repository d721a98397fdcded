// Where a node looks for the coordinator after each thing that may happen to it.
#include "launcher/membership/coordinator_search.h"

#include <chrono>
#include <string>

#include "tests/testing/catch.h"

using namespace ddprun::launcher;
using namespace ddprun::rendezvous;
using namespace std::chrono_literals;
using Then = SearchStep::Then;

namespace {

constexpr SearchLimits limits{
    .join_timeout = 60s, .election_limit = 15s, .heartbeat_timeout = 5s, .may_be_taken_over = true};
const TimePoint start = TimePoint() + 1h;
const Seat b{"b", 1, "host-b", "10.0.0.2", 7001};
const Seat c{"c", 2, "host-c", "10.0.0.3", 7002};

CoordinatorSearch joining(SearchLimits with = limits) {
  CoordinatorSearch search(with, "a");
  search.begins(start);
  search.connects();
  return search;
}

void hears_of_round(CoordinatorSearch& search, int term) {
  search.hears(
      Succession{.term = term, .round = {term, 3}, .coordinator = "b", .council = {}, .before = {}},
      start);
}

CoordinatorSearch member(SearchLimits with = limits) {
  CoordinatorSearch search = joining(with);
  search.welcomed();
  hears_of_round(search, 1);
  search.hears(RoundStart{.attempt = 3, .term = 1, .group_rank = 2}, start);
  return search;
}

CoordinatorSearch spare() {
  CoordinatorSearch search = joining();
  search.welcomed();
  hears_of_round(search, 1);
  return search;
}

}  // namespace

TEST_CASE("a new node asks at the endpoint until its join timeout is over",
          "[launcher][coordinator_search]") {
  CoordinatorSearch search = joining();
  CHECK(search.is_new());
  CHECK(search.target() == nullptr);
  CHECK(search.patience(start + 10s) == 50s);
  const SearchStep step = search.unreachable("nobody listens", false, start + 60s);
  CHECK(step.then == Then::Unreachable);
  CHECK(step.why == "nobody listens");
  // Or until it hears that there is no place for it: nobody else was named.
  CHECK(joining().unreachable("it has another secret", false, start).then == Then::Unreachable);
}

TEST_CASE("a new node whose connection breaks tries again only where it was sent to another one",
          "[launcher][coordinator_search]") {
  CoordinatorSearch search = joining();
  const SearchStep step = search.lost("it closed the connection", false, false, start);
  CHECK(step.then == Then::Lost);
  CHECK_FALSE(step.silent);
  CoordinatorSearch sent = joining();
  sent.goes_where(b, false, start);
  sent.connects();
  CHECK(sent.lost("it closed the connection", false, false, start).then == Then::Connect);
}

TEST_CASE("a member that loses its coordinator has a part in the election, and nobody else has",
          "[launcher][coordinator_search]") {
  SECTION("of a round that goes on") {
    const SearchStep step = member().lost("it is silent", true, false, start);
    CHECK(step.then == Then::Elect);
    CHECK(step.why == "it is silent");
  }
  SECTION("it led itself") { CHECK(member().lost("", false, true, start).then == Then::Lost); }
  SECTION("the job cannot be taken over") {
    SearchLimits fixed = limits;
    fixed.may_be_taken_over = false;
    const SearchStep step = member(fixed).lost("it is silent", true, false, start);
    CHECK(step.then == Then::Lost);
    CHECK(step.silent);
  }
  SECTION("the verdict is out") {
    CoordinatorSearch search = member();
    search.hears(Finish{.exit_status = 0}, start);
    CHECK(search.lost("", false, false, start).then == Then::Nothing);
  }
  SECTION("the verdict is on its way") {
    CoordinatorSearch search = member();
    search.hears(Stop{.attempt = 3, .final_verdict = true, .term = 1}, start);
    const SearchStep step = search.lost("it closed the connection", false, false, start);
    CHECK(step.then == Then::Lost);
    CHECK_FALSE(step.silent);  // Nothing goes on that the agent could join again.
  }
  SECTION("the coordinator has sent it elsewhere") {
    CoordinatorSearch search = member();
    search.sent_away();
    CHECK(search.lost("", false, false, start).then == Then::Nothing);
  }
}

TEST_CASE("what comes late of an earlier round changes nothing of a member's place",
          "[launcher][coordinator_search]") {
  CoordinatorSearch search = member();
  CHECK_FALSE(search.hears(RoundStart{.attempt = 2, .term = 1, .group_rank = 0}, start));
  CHECK_FALSE(search.hears(Stop{.attempt = 2, .final_verdict = true, .term = 1}, start));
  REQUIRE(search.round().seat());
  CHECK(search.round().seat()->group_rank == 2);
  CHECK(search.hears(Stop{.attempt = 3, .term = 1}, start));
  CHECK(search.lost("it is silent", true, false, start).then == Then::Elect);
}

TEST_CASE("a node that only stood by joins again, once it can have heard who leads",
          "[launcher][coordinator_search]") {
  CoordinatorSearch search = spare();
  const SearchStep lost = search.lost("it closed the connection", false, false, start);
  CHECK(lost.then == Then::Lost);
  CHECK(lost.silent);  // The agent may join again.
  const SearchStep again = search.joins_again("a2", false, start);
  CHECK(again.then == Then::Connect);
  CHECK(again.pause == limits.election_limit);
  CHECK(again.asks_members);
  CHECK(search.node_id() == "a2");
  CHECK(search.replaced_id() == "a");
  CHECK_FALSE(search.is_new());
  CHECK(search.is_over(start + limits.election_limit));

  // As a member that is cut off it need not wait.
  search.welcomed();
  search.hears(RoundStart{.attempt = 4, .term = 1, .group_rank = 2}, start);
  search.hears(Finish{.exit_status = exit_status::node_lost, .may_rejoin = true}, start);
  CHECK(search.joins_again("a3", false, start).pause == 0ms);
}

TEST_CASE("a node that stood by joins again at once where there is nobody to hear from",
          "[launcher][coordinator_search]") {
  SearchLimits with = limits;
  bool silent = false;
  SECTION("its own connection broke: the coordinator may be well") { silent = true; }
  SECTION("nobody takes the job over") { with.may_be_taken_over = false; }
  SECTION("something else names who leads") { with.meets_elsewhere = true; }
  CoordinatorSearch search = joining(with);
  search.welcomed();
  hears_of_round(search, 1);
  CHECK(search.lost("", silent, false, start).then == Then::Lost);
  CHECK(search.joins_again("a2", false, start).pause == 0ms);
}

TEST_CASE("a node that was cut off joins again at once, and has its whole join timeout",
          "[launcher][coordinator_search]") {
  CoordinatorSearch search = member();
  const SearchStep again = search.joins_again("a2", false, start);
  CHECK(again.then == Then::Connect);
  CHECK(again.pause == 0ms);
  CHECK(again.asks_members);
  CHECK_FALSE(search.round().seat());
  CHECK_FALSE(search.is_over(start + 59s));
  CHECK(search.lost("it closed the connection", false, false, start).pause == 250ms);
}

TEST_CASE("a node that was sent away with a last word hears of the next loss again",
          "[launcher][coordinator_search]") {
  CoordinatorSearch search = member();
  search.hears(Finish{.exit_status = exit_status::node_lost, .may_rejoin = true}, start);
  search.joins_again("a2", false, start);
  search.connects();
  search.welcomed();
  CHECK(search.lost("it closed the connection", false, false, start).then != Then::Nothing);
}

TEST_CASE("one that led and knows of nobody else waits no longer than an election",
          "[launcher][coordinator_search]") {
  CoordinatorSearch search = member();
  SECTION("nobody else") {
    search.joins_again("a2", true, start);
    CHECK(search.is_over(start + 15s));
  }
  SECTION("another one leads") {
    search.named(b);
    search.joins_again("a2", true, start);
    CHECK_FALSE(search.is_over(start + 15s));
    CHECK(*search.target() == b);
  }
}

TEST_CASE("the seat that was named and the endpoint take turns while one is sought",
          "[launcher][coordinator_search]") {
  CoordinatorSearch search = member();
  search.joins_again("a2", false, start);
  search.named(b);
  CHECK(*search.target() == b);
  CHECK(search.patience(start) == limits.heartbeat_timeout);
  SearchStep step = search.unreachable("", false, start + 5s);
  CHECK(step.then == Then::Connect);
  CHECK_FALSE(step.asks_members);
  CHECK(search.target() == nullptr);
  step = search.unreachable("", false, start + 10s);
  CHECK(step.then == Then::Connect);
  CHECK(step.asks_members);  // Both did not answer: others may know by now.
  CHECK(*search.target() == b);
  CHECK(search.unreachable("", false, start + 60s).then == Then::Unreachable);
}

TEST_CASE("a node goes where it is sent, and elsewhere only while it has time",
          "[launcher][coordinator_search]") {
  CoordinatorSearch search = joining();
  SECTION("to one that leads") {
    CHECK(search.goes_where(b, false, start).pause == 50ms);
    CHECK(*search.target() == b);
  }
  SECTION("to nobody that is known, or to itself") {
    CHECK(search.goes_where({}, false, start).pause == 250ms);
    const Seat itself{.node_id = "a", .address = "10.0.0.1", .port = 1};
    CHECK(search.goes_where(itself, false, start).pause == 250ms);
    CHECK(search.target() == nullptr);
  }
  SECTION(
      "not to where nobody answered, and back to the endpoint only where that names who leads") {
    search.named(b);
    search.unreachable("", false, start);
    REQUIRE(search.target() == nullptr);
    search.goes_where(c, false, start);
    CHECK(*search.target() == c);
    search.goes_where({}, false, start);
    CHECK(*search.target() == c);
    SearchLimits with = limits;
    with.meets_elsewhere = true;
    CoordinatorSearch met = joining(with);
    met.goes_where(b, false, start);
    met.goes_where({}, false, start);
    CHECK(met.target() == nullptr);
  }
  SECTION("when its time is over") {
    CHECK(search.goes_where(b, false, start + 60s).then == Then::Unreachable);
    CHECK(search.goes_where({}, false, start + 59'800ms).then == Then::Unreachable);
  }
}

TEST_CASE("a node follows who leads, with its round, and does not begin anew on its way there",
          "[launcher][coordinator_search]") {
  CoordinatorSearch search = member();
  CHECK(search.follows(b, /*hosts_endpoint=*/true).then == Then::Nothing);
  CHECK(search.follows(b, false).then == Then::Connect);
  CHECK(search.resumes());
  SECTION("it is welcomed once, and says again what it had said") {
    CHECK(search.welcomed());
    CHECK_FALSE(search.welcomed());
  }
  SECTION("it does not answer: the election goes on") {
    CHECK(search.unreachable("", false, start).then == Then::Elect);
    SECTION("for it once more") { CHECK(search.follows(b, false).then == Then::Connect); }
    SECTION("for nobody: the agent may join again") {
      CHECK(search.gives_up({.why = "no majority"}).silent);
    }
  }
  SECTION("as a new node") {
    search.joins_again("a2", false, start);
    CHECK(search.follows(b, false).then == Then::Nothing);
    CHECK(search.follows(c, false).then == Then::Connect);
    CHECK_FALSE(search.resumes());
  }
}

TEST_CASE("a member whose next coordinator gives way at once has a part in finding another",
          "[launcher][coordinator_search]") {
  CoordinatorSearch search = member();
  SECTION("it was on its way there") {
    search.follows(b, false);
    search.connects();
    search.sent_away();
    SearchStep step;
    SECTION("and is told of nobody else") { step = search.goes_where({}, false, start); }
    SECTION("or of another one") {
      step = search.goes_where(c, false, start);
      CHECK(*search.target() == c);
    }
    CHECK(step.then == Then::Elect);
    CHECK(step.why == "it leads no more");
    // That connection's end is no further loss.
    CHECK(search.lost("it closed the connection", false, false, start).then == Then::Nothing);
    CHECK(search.gives_up({.why = "no majority"}).silent);  // The agent may join again.
  }
  SECTION("it led itself") {
    search.leads({.term = 2, .given = {}}, start);
    search.sent_away();
    const SearchStep step = search.goes_where({}, /*hosted_endpoint=*/true, start);
    CHECK(step.then == Then::Lost);
    CHECK(step.silent);
  }
}

TEST_CASE("the word of an older term is not believed", "[launcher][coordinator_search]") {
  CoordinatorSearch search = member();
  CHECK_FALSE(search.believes(9));  // It has a coordinator: that is the election's.
  search.joins_again("a2", false, start);
  CHECK_FALSE(search.believes(0));
  CHECK(search.believes(1));
}

TEST_CASE("an election that failed is told with the loss before it",
          "[launcher][coordinator_search]") {
  CoordinatorSearch search = member();
  search.lost("it closed the connection", false, false, start);
  SECTION("nobody hears the coordinator") {
    const SearchStep step = search.gives_up({.why = "no majority"});
    CHECK(step.then == Then::Lost);
    CHECK(step.why == "it closed the connection; no majority");
    CHECK_FALSE(step.silent);
  }
  SECTION("others do") { CHECK(search.gives_up({.why = "", .still_there = true}).silent); }
  SECTION("the arbiter names one") {
    search.gives_up({.why = "", .still_there = false, .coordinator = c});
    CHECK(*search.target() == c);
  }
  SECTION("it is on its way already") {
    search.joins_again("a2", false, start);
    CHECK(search.gives_up({.why = "no majority"}).then == Then::Nothing);
  }
}

TEST_CASE("who has asked the endpoint in vain goes to the seat that is found next",
          "[launcher][coordinator_search]") {
  const auto asks_endpoint = [] {
    CoordinatorSearch search = joining();
    search.found(b);
    CHECK(search.unreachable("", false, start).then == Then::Connect);
    CHECK(search.target() == nullptr);
    return search;
  };
  CoordinatorSearch same = asks_endpoint();
  CHECK(same.follows(b, false).then == Then::Connect);  // It was not on its way there.
  CHECK(*same.target() == b);
  CoordinatorSearch other = asks_endpoint();
  other.found(c);
  CHECK(*other.target() == c);
  CoordinatorSearch again = asks_endpoint();
  again.joins_again("a2", false, start);
  CHECK(*again.target() == b);
  CoordinatorSearch founder = asks_endpoint();
  founder.found_nobody();
  CHECK_FALSE(founder.coordinator());
  founder.named(c);
  CHECK(*founder.target() == c);
}

TEST_CASE("who leads goes to nobody else, and a member has all the time to find its coordinator",
          "[launcher][coordinator_search]") {
  CoordinatorSearch search = member();
  CHECK(search.patience(start + 10s) == limits.join_timeout);
  search.found(b);
  search.leads({.term = 2, .given = {}}, start);
  CHECK_FALSE(search.coordinator());
}

TEST_CASE("a coordinator that leaves votes, and who takes over knows that it was handed the job",
          "[launcher][coordinator_search]") {
  CoordinatorSearch search = member();
  CHECK(search.hands_over(/*hosts_endpoint=*/true).then == Then::ElectLeaver);
  const Inherited inherited = search.leads({.term = 2, .given = {}}, start + 2h);
  CHECK(inherited.ran == 2h);
  CHECK(inherited.handed_over);
  CHECK(inherited.term == 2);
  CHECK(inherited.succession.round.attempt == 3);
  CHECK(search.resumes());
  CHECK_FALSE(search.leads({.term = 3, .given = {}}, start + 2h).handed_over);

  // What it has handed over and lost all the same is no longer its to give.
  search.hands_over(true);
  CHECK(search.gives_up({.why = "no majority"}).why == "it has handed the job over; no majority");
  CHECK(search.lost("it is silent", true, false, start).then == Then::Elect);
  CHECK_FALSE(search.leads({.term = 4, .given = {}}, start + 2h).handed_over);

  // So may the others of the round vote at once, and it itself though its workers have ended.
  CHECK(member().hands_over(/*hosts_endpoint=*/false).then == Then::ElectLeaver);
  CoordinatorSearch leaving = member();
  leaving.says(Leaving{});
  CHECK(leaving.hands_over(/*hosts_endpoint=*/true).then == Then::ElectLeaver);

  // Who has no part in the round looks for where it goes on.
  const SearchStep step = spare().hands_over(false);
  CHECK(step.then == Then::Lost);
  CHECK(step.silent);
}
