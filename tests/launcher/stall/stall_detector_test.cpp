// Who is said to stand still, with ranks and clocks that are invented.
#include "launcher/stall/stall_detector.h"

#include <algorithm>

#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;
using ddprun::testing::contains;
using Kind = StallStep::Kind;

namespace {

// A node whose ranks say what the test lets them say, looked at once a second.
class Node {
 public:
  explicit Node(int count, StallLimits limits = {}, bool all_ranks_here = true)
      : detector(limits), limits_(limits) {
    for (int rank = 0; rank < count; ++rank) ranks.push_back({.rank = rank});
    detector.attempt_started(all_ranks_here);
  }

  RankLook& operator[](int rank) { return ranks.at(static_cast<std::size_t>(rank)); }

  void say(int rank, const std::string& phase, std::int64_t step = -1) {
    RankLook& one = (*this)[rank];
    one.said = ++words_;
    one.phase = phase;
    if (step >= 0) one.step = step;
    one.waits = false;
  }
  void wait(int rank) {
    (*this)[rank].waits = true;
    (*this)[rank].waits_since = ++words_;
  }

  StallStep look() {
    now_ += limits_.look;
    last = detector.look(ranks, now_);
    if (last.kind != Kind::Nothing) news.push_back(last);
    return last;
  }
  // Looks until so much time has passed, and returns what was told.
  std::vector<StallStep> pass(std::chrono::milliseconds time) {
    news.clear();
    for (auto until = now_ + time; now_ < until;) look();
    return news;
  }
  void gap(std::chrono::milliseconds time) { now_ += time; }

  // Steps of a tenth of a second a phase, so that all phases are known.
  void train(int steps) {
    for (int step = 1; step <= steps; ++step) {
      for (const char* phase : {"forward", "backward"}) {
        for (RankLook& rank : ranks) say(rank.rank, phase, step);
        look();
      }
    }
  }

  StallDetector detector;
  std::vector<RankLook> ranks;
  std::vector<StallStep> news;
  StallStep last;

 private:
  StallLimits limits_;
  StallDetector::TimePoint now_{};
  std::int64_t words_ = 0;
};

StallLimits of(std::chrono::milliseconds timeout, bool fails = false) {
  return {.timeout = timeout, .on_stall = fails ? OnStall::Fail : OnStall::Report};
}

using Ranks = std::vector<int>;

}  // namespace

TEST_CASE("16.3: the one that does not come to a collective is behind, not those who wait for it",
          "[stall]") {
  Node node(4);
  node.train(3);
  for (int rank : {0, 1, 3}) node.wait(rank);
  const auto early = node.pass(59s);
  // At half of the limit a word, since others wait.
  REQUIRE(early.size() == 1);
  CHECK(early[0].kind == Kind::Warn);
  CHECK(early[0].behind == Ranks{2});
  CHECK(early[0].reason ==
        "rank 2 has said nothing in \"backward\" after step 3 for 30 s, while ranks 0-1, 3 wait "
        "for others");
  const auto late = node.pass(2s);
  REQUIRE(late.size() == 1);
  CHECK(late[0].kind == Kind::Report);
  CHECK(late[0].behind == Ranks{2});
  CHECK(contains(late[0].reason, "rank 2 has said nothing in \"backward\" after step 3 for 60 s"));
  CHECK(contains(late[0].reason, "(limit 60 s)"));
  // Once, and without more unless that is asked for.
  node.detector.reported({});
  CHECK(node.pass(1h).empty());
}

TEST_CASE("16.3: what stands counts as lost once its report is there, if that is asked for",
          "[stall]") {
  Node node(2, {.on_stall = OnStall::Fail});
  node.train(2);
  node.wait(0);
  CHECK(node.pass(61s).back().kind == Kind::Report);
  CHECK(node.pass(10s).empty());  // Stacks are still being taken.
  node.detector.reported({});
  const auto lost = node.pass(5s);
  REQUIRE(lost.size() == 1);
  CHECK(lost[0].kind == Kind::Lost);
  CHECK(lost[0].behind == Ranks{1});
}

TEST_CASE("16.3: one that goes on while its report is made is not lost", "[stall]") {
  Node node(2, {.on_stall = OnStall::Fail});
  node.train(2);
  node.wait(0);
  CHECK(node.pass(61s).back().kind == Kind::Report);
  node.say(1, "forward", 3);
  node.pass(2s);
  node.detector.reported({});
  CHECK(node.pass(20s).empty());
  // The next stall is another one, with a report of its own.
  CHECK(node.pass(60s).back().kind == Kind::Report);
  CHECK(node.last.kind == Kind::Nothing);
}

TEST_CASE("of phases that a program numbers only the latest are remembered", "[stall]") {
  Node node(1);
  const auto limit_of = [&](const std::string& phase) {
    return node.detector.limit_of({.said = 1, .phase = phase});
  };
  for (int step = 0; step < 3'000; ++step) {
    node.say(0, "forward", step);
    node.look();
    node.say(0, "save " + std::to_string(step));
    node.look();
  }
  CHECK(limit_of("save 0") == 600s);  // As of one that nobody knows.
  CHECK(limit_of("save 2500") == 60s);
  CHECK(limit_of("forward") == 60s);
}

TEST_CASE("16.3: a phase that nobody knows has ten minutes, and then what it was seen to take",
          "[stall]") {
  Node node(2);
  // The first step compiles, and opens a cold file system.
  for (int rank : {0, 1}) node.say(rank, "forward", 0);
  CHECK(node.pass(599s).empty());
  CHECK(node.pass(2s).back().kind == Kind::Report);
  node.detector.reported({});
  node.train(2);

  // Validation takes its own time, learnt from whichever rank; a step's limit stays.
  for (int rank : {0, 1}) node.say(rank, "validation", 3);
  CHECK(node.pass(200s).empty());
  node.train(2);
  CHECK(node.detector.limit_of({.rank = 1, .said = 1, .phase = "validation"}) > 900s);
  CHECK(node.detector.limit_of({.rank = 1, .said = 1, .phase = "backward"}) == 60s);
  for (int rank : {0, 1}) node.say(rank, "validation", 5);
  CHECK(node.pass(900s).empty());
  // Rank 0 saves while the others wait at their next collective.
  node.train(1);
  node.wait(1);
  node.say(0, "checkpoint", 6);
  CHECK(node.pass(599s).empty());
  CHECK(node.pass(2s).back().behind == Ranks{0});
}

TEST_CASE("16.3: what was learnt stays for the next attempt", "[stall]") {
  Node node(1);
  node.train(3);
  node.detector.attempt_started(true);
  node.say(0, "forward", 3);
  CHECK(node.pass(62s).back().kind == Kind::Report);
}

TEST_CASE("16.3: after the last step a rank has the time of a phase that nobody knows", "[stall]") {
  Node node(1);
  node.train(3);
  node[0].done = true;
  CHECK(node.pass(590s).empty());
  CHECK(node.pass(20s).back().kind == Kind::Report);
}

TEST_CASE("16.3: all that stand alike are reported, and nobody of them is blamed", "[stall]") {
  Node node(3, {.on_stall = OnStall::Fail});
  node.train(3);
  const auto news = node.pass(61s);
  REQUIRE(news.size() == 1);
  CHECK(news[0].kind == Kind::Report);
  CHECK(news[0].behind.empty());
  CHECK(contains(news[0].reason, "ranks 0-2 have said nothing"));
  CHECK(contains(news[0].reason, "not known"));
  node.detector.reported({});
  CHECK(node.pass(2s).back().behind == Ranks{0, 1, 2});  // The attempt cannot go on.
}

TEST_CASE("16.3: of those that stand the one at the earliest step is behind", "[stall]") {
  Node node(3);
  node.train(3);
  node.say(0, "forward", 4);
  node.say(2, "forward", 4);
  const auto news = node.pass(63s);
  REQUIRE_FALSE(news.empty());
  CHECK(news[0].behind == Ranks{1});
}

TEST_CASE("16.3: ranks of one node that all wait for each other stall, those of several do not",
          "[stall]") {
  for (const bool all_ranks_here : {true, false}) {
    Node node(2, {.on_stall = OnStall::Fail}, all_ranks_here);
    node.train(3);
    node.wait(0);
    node.wait(1);
    const auto news = node.pass(62s);
    if (!all_ranks_here) {
      CHECK(news.empty());
      CHECK(node.pass(24h).empty());
      continue;
    }
    REQUIRE(news.size() == 1);
    CHECK(news[0].reason == "ranks 0-1 wait in collectives for each other, for 60 s");
    CHECK(news[0].behind.empty());
    node.detector.reported({});
    CHECK(node.pass(2s).back().behind == Ranks{0, 1});
  }
}

TEST_CASE("16.3: ranks that wait, go on and wait again do not stall", "[stall]") {
  Node node(2, of(10s));
  node.train(2);
  for (int i = 0; i < 30; ++i) {
    node.wait(0);
    node.wait(1);
    CHECK(node.pass(9s).empty());
  }
}

TEST_CASE("16.3: a halted rank is behind, also where it seems to wait", "[stall]") {
  Node node(3, of(10s, true));
  node.train(2);
  for (int rank : {0, 1, 2}) node.wait(rank);
  node[1].state = 'T';
  const auto news = node.pass(11s);
  REQUIRE(news.size() == 1);
  CHECK(news[0].behind == Ranks{1});
  CHECK(contains(news[0].reason, "rank 1 has been halted by a signal for 10 s"));
  node.detector.reported({});
  CHECK(node.pass(1s).back().behind == Ranks{1});
}

TEST_CASE("16.3: a rank that a debugger holds is let alone", "[stall]") {
  Node node(2, of(10s, true));
  node.train(2);
  node.wait(0);
  node[1].state = 't';
  CHECK(node.pass(1h).empty());
}

TEST_CASE("16.3: time that the launcher slept through counts for nobody", "[stall]") {
  Node node(2, of(60s));
  node.train(2);
  node.wait(0);
  CHECK(node.pass(29s).empty());
  // The lid was closed, or the launcher halted: for hours, again and again.
  for (int i = 0; i < 20; ++i) {
    node.gap(2h);
    CHECK(node.look().kind != Kind::Report);
  }
  node.news.clear();
  CHECK(node.pass(12s).back().kind == Kind::Report);
}

TEST_CASE("16.3: of programs that say nothing, nobody stalls by a limit that is learnt",
          "[stall]") {
  Node node(2);
  CHECK(node.pass(48h).empty());
  node[0].state = 'T';
  CHECK(node.pass(48h).empty());
}

TEST_CASE("16.3: of programs that say nothing, all must stand without work, for the limit given",
          "[stall]") {
  Node node(2, of(600s, true));
  // Heartbeats of a library are no work.
  const auto pass = [&](std::chrono::seconds time, std::int64_t ms_each_second) {
    std::vector<StallStep> news;
    for (auto second = 0s; second < time; ++second) {
      for (RankLook& rank : node.ranks) rank.used_ms += 3;
      node[1].used_ms += ms_each_second;
      if (node.look().kind != Kind::Nothing) news.push_back(node.last);
    }
    return news;
  };
  CHECK(pass(2000s, 400).empty());  // Rank 1 works, perhaps for all.
  CHECK(pass(590s, 0).empty());
  node[0].written += 1;  // A line of output is work.
  CHECK(pass(590s, 0).empty());
  const auto news = pass(20s, 0);
  REQUIRE(news.size() == 1);
  CHECK(news[0].behind.empty());
  CHECK(contains(news[0].reason, "ranks 0-1 have used no processor time and written nothing"));
  node.detector.reported({});
  const auto lost = pass(2s, 0);
  REQUIRE(lost.size() == 1);
  CHECK(lost[0].behind == Ranks{0, 1});
}

TEST_CASE("17.2: what stacks say of collectives tells who is behind where nothing else does",
          "[stall]") {
  for (const bool all_ranks_here : {true, false}) {
    Node one_is_not(3, of(20s, true), all_ranks_here);
    CHECK(one_is_not.pass(21s).back().behind.empty());
    one_is_not.detector.reported({.in_collective = {0, 2}, .in_kernel = {}});
    CHECK(one_is_not.pass(2s).back().behind == Ranks{1});

    // All wait: for one of another node, or for each other.
    Node all_wait(2, of(20s, true), all_ranks_here);
    CHECK(all_wait.pass(21s).back().kind == Kind::Report);
    all_wait.detector.reported({.in_collective = {0, 1}, .in_kernel = {}});
    const auto lost = all_wait.pass(60s);
    CHECK(lost.size() == (all_ranks_here ? 1U : 0U));
  }
}

TEST_CASE("who has raised and did not end is behind those who say nothing", "[stall]") {
  Node node(3, of(20s, true));
  node[1].raised = "KeyError: labels";
  node[1].uncaught = true;
  const StallStep told = node.pass(21s).back();
  CHECK(told.behind == Ranks{1});
  CHECK(told.reason ==
        "rank 1 has used no processor time and written nothing for 20 s (limit 20 s), after the "
        "traceback of KeyError: labels");
  node.detector.reported({.in_collective = {}, .in_kernel = {}});
  CHECK(node.pass(2s).back().behind == Ranks{1});
}

TEST_CASE("a traceback that may have been survived counts where nothing else does", "[stall]") {
  Node node(3, of(20s, true));
  node[1].raised = "KeyError: labels";
  CHECK(node.pass(21s).back().behind == Ranks{1});
  node.detector.reported({.in_collective = {0, 1}, .in_kernel = {}});
  CHECK(node.pass(2s).back().behind == Ranks{2});

  Node all_alike(2, of(20s, true));
  for (RankLook& rank : all_alike.ranks) rank.raised = "ValueError: of both";
  CHECK(all_alike.pass(21s).back().behind.empty());
}

TEST_CASE("17.2: stacks tell of the stall that they were taken for, and of no other", "[stall]") {
  Node node(3, of(20s, true));
  CHECK(node.pass(21s).back().behind.empty());
  node.detector.reported({.in_collective = {0, 2}, .in_kernel = {}});
  for (RankLook& rank : node.ranks) rank.used_ms += 1'000;  // They go on.
  const auto next = node.pass(22s);
  REQUIRE(next.size() == 1);
  CHECK(next[0].kind == Kind::Report);
  CHECK(next[0].behind.empty());
  node.detector.reported({.in_collective = {0, 1}, .in_kernel = {}});
  CHECK(node.pass(2s).back().behind == Ranks{2});
}

TEST_CASE("16.3: where one of two that stood goes on, the other is reported anew", "[stall]") {
  const StallLimits limits = GENERATE(of(60s, true), StallLimits{.on_stall = OnStall::Fail});
  Node node(3, limits);
  node.train(2);
  node.wait(0);
  node.say(1, "forward", 2);
  node.say(2, "backward", 2);
  CHECK(node.pass(62s).back().behind == Ranks{1, 2});
  CHECK_FALSE(contains(node.news.back().reason, "alike"));
  node.detector.reported({});
  node.say(1, "backward", 3);
  const auto news = node.pass(1s);
  REQUIRE(news.size() == 1);
  CHECK(news[0].kind == Kind::Report);  // And it is not lost by stacks of before.
  CHECK(news[0].behind == Ranks{2});
}

TEST_CASE("16.3: a phase is known by who has left it, not by a debugger or by silence", "[stall]") {
  SECTION("a debugger") {
    Node node(1);
    node.train(2);
    node.say(0, "compile", 3);
    node.pass(5s);
    for (const char state : {'t', 'R', 't', 'R'}) {
      node[0].state = state;
      node.pass(5s);
    }
    CHECK(node.detector.limit_of(node[0]) == 600s);
    node.say(0, "forward", 4);
    node.look();
    CHECK(node.detector.limit_of({.said = 1, .phase = "compile"}) == 60s);
  }
  SECTION("what a program did before its first word") {
    Node node(1);
    for (int second = 0; second < 30; ++second) {
      node[0].used_ms += 900;
      node.look();
    }
    node.say(0, "", 0);
    node.look();
    CHECK(node.detector.limit_of(node[0]) == 600s);
  }
}

TEST_CASE("16.3: a look or two that a busy machine held up count in full", "[stall]") {
  Node node(1, of(60s));
  node.train(1);
  for (int i = 0; i < 20; ++i) {
    node.gap(2s);
    node.look();
  }
  REQUIRE(node.news.size() == 1);
  CHECK(node.news[0].reason ==
        "rank 0 has said nothing in \"backward\" after step 1 for 60 s (limit 60 s)");
}

TEST_CASE("16.3: a wait that begins or ends is a sign of life, also where waits have no number",
          "[stall]") {
  Node node(1, of(10s));
  node.train(1);
  for (int i = 0; i < 5; ++i) {
    for (const bool waits : {true, false}) {
      node[0].waits = waits;
      CHECK(node.pass(9s).empty());
    }
  }
}

TEST_CASE("16.3: workers that have ended, or are new, do not stand", "[stall]") {
  Node node(2, of(10s));
  node.train(2);
  node.wait(0);
  CHECK(node.pass(9s).size() == 1);  // The warning.
  node.ranks.pop_back();
  const auto alone = node.pass(9s);
  REQUIRE(alone.size() == 1);
  CHECK(alone[0].behind.empty());
  CHECK(alone[0].reason ==
        "rank 0 waits in a collective to which nobody else comes any more, for 10 s");
  node.ranks.clear();
  CHECK(node.pass(1h).empty());
  CHECK(node.last.reason == "no worker runs");
}

// ---- --on-stall auto ----

namespace {

// Ranks that can park, in a job that has a restart left and knows how long its phases last.
struct CheapNode : Node {
  explicit CheapNode(int count, bool all_ranks_here = true,
                     StallLimits limits = {.on_stall = OnStall::Auto})
      : Node(count, limits, all_ranks_here) {
    for (RankLook& rank : ranks) rank.can_park = true;
    another_attempt(all_ranks_here);
    train(12);
  }
  void another_attempt(bool all_ranks_here = true, bool restart_left = true) {
    detector.attempt_started(all_ranks_here, restart_left);
  }
  // The last rank does not come to the collective, and its report is made.
  void stall(StackFacts facts = {}) {
    for (std::size_t i = 0; i + 1 < ranks.size(); ++i) wait(ranks[i].rank);
    CHECK(pass(61s).back().kind == Kind::Report);
    detector.reported(std::move(facts));
  }
  std::string why_spared() {
    const auto told = pass(10s);
    return told.size() == 1 && told[0].kind == Kind::Spared ? told[0].reason : "not spared";
  }
};

}  // namespace

TEST_CASE("16.3: unasked, who is behind is lost where that costs the others no more than a step",
          "[stall]") {
  for (const bool all_ranks_here : {true, false}) {
    CheapNode node(3, all_ranks_here);
    node.stall();
    const auto news = node.pass(10s);
    REQUIRE(news.size() == 1);
    CHECK(news[0].kind == Kind::Lost);
    CHECK(news[0].behind == Ranks{2});
    CHECK(contains(news[0].reason, "rank 2 has said nothing in \"backward\" after step 12"));
  }
}

TEST_CASE("16.3: a limit that the user gives is as good as one that is learnt", "[stall]") {
  CheapNode node(2, true, {.timeout = 10s, .on_stall = OnStall::Auto});
  node.wait(0);
  CHECK(node.pass(11s).back().kind == Kind::Report);
  node.detector.reported({});
  CHECK(node.pass(2s).back().kind == Kind::Lost);
}

TEST_CASE("16.3: unasked, nobody is lost of whom it is not certain that he holds up the others",
          "[stall]") {
  SECTION("all stand alike") {
    CheapNode node(2);
    CHECK(node.pass(61s).back().kind == Kind::Report);
    node.detector.reported({});
    CHECK(node.why_spared() == "who is behind is not known for certain");
  }
  SECTION("another one stands at a later step, as hosts of devices do") {
    CheapNode node(3);
    node.wait(0);
    node.say(1, "backward", 13);
    CHECK(node.pass(62s).back().behind == Ranks{2});
    node.detector.reported({});
    CHECK(node.why_spared() == "who is behind is not known for certain, since rank 1 stands, too");
  }
  SECTION("the same, where their stacks say that they wait") {
    CheapNode node(3);
    CHECK(node.pass(62s).back().behind.empty());
    node.detector.reported({.in_collective = {0, 1}, .in_kernel = {}});
    CHECK(node.why_spared() ==
          "who is behind is not known for certain, since ranks 0-1 stand, too");
  }
  SECTION("another one is at work, perhaps for all") {
    CheapNode node(3);
    node.wait(0);
    node.say(1, "validation", 12);
    CHECK(node.pass(61s).back().behind == Ranks{2});
    node.detector.reported({});
    CHECK(node.why_spared() == "rank 1 may be at work");
    // Once it waits, too, there is no doubt any more.
    node.wait(1);
    CHECK(node.pass(2s).back().kind == Kind::Lost);
  }
}

TEST_CASE("16.3: unasked, nobody is lost by a limit that is a guess", "[stall]") {
  SECTION("of a phase that was seldom left: validation, a checkpoint") {
    CheapNode node(2);
    for (int i = 0; i < 9; ++i) {
      node.say(1, "checkpoint", 12);
      node.look();
      node.train(1);
    }
    node.say(1, "checkpoint", 12);
    node.stall();
    CHECK(node.why_spared() ==
          "how long \"checkpoint\" may take is not known well: it was left 9 times");
  }
  SECTION("which several ranks leave at once: that is one time") {
    CheapNode node(3);
    for (int i = 0; i < 4; ++i) {
      for (int rank : {0, 1, 2}) node.say(rank, "validation", 12);
      node.look();
      node.train(1);
    }
    node.say(2, "validation", 12);
    node.stall();
    CHECK(contains(node.why_spared(), "it was left 4 times"));
  }
  SECTION("of a phase that no rank has left yet") {
    CheapNode node(2);
    node.say(1, "compile", 12);
    node.wait(0);
    CHECK(node.pass(601s).back().kind == Kind::Report);
    node.detector.reported({});
    CHECK(contains(node.why_spared(), "it was left 0 times"));
  }
  SECTION("after the last step") {
    CheapNode node(2);
    node[1].done = true;
    node.wait(0);
    CHECK(node.pass(601s).back().kind == Kind::Report);
    node.detector.reported({});
    CHECK(contains(node.why_spared(), "rank 1 is behind its last step"));
  }
  SECTION("of a program that says nothing") {
    Node node(2, {.timeout = 20s, .on_stall = OnStall::Auto});
    node.detector.attempt_started(true, true);
    for (RankLook& rank : node.ranks) rank.can_park = true;
    CHECK(node.pass(21s).back().kind == Kind::Report);
    node.detector.reported({.in_collective = {0}, .in_kernel = {}});
    CHECK(node.pass(2s).back().kind == Kind::Spared);
    CHECK(node.pass(1h).empty());
  }
  SECTION("while it waits for a file server") {
    CheapNode node(2);
    node.stall({.in_collective = {}, .in_kernel = {1}});
    CHECK(contains(node.why_spared(), "rank 1 waits in the kernel"));
  }
  SECTION("while a debugger holds it") {
    CheapNode node(2);
    node.wait(0);
    node[1].state = 't';
    CHECK(node.pass(1h).empty());
  }
}

TEST_CASE("16.3: unasked, nobody is lost where the others would lose more than a step", "[stall]") {
  SECTION("one of them cannot park") {
    CheapNode node(4);
    node[0].can_park = node[1].can_park = false;
    node.stall();
    CHECK(node.why_spared() ==
          "ranks 0-1 would not go on in place (docs/failures.md#recovery-in-place)");
    // That the one behind cannot is all the same, and the others may say it later.
    node[0].can_park = node[1].can_park = true;
    node[3].can_park = false;
    CHECK(node.pass(2s).back().kind == Kind::Lost);
  }
  SECTION("no restart is left") {
    CheapNode node(2);
    node.another_attempt(true, false);
    node.train(1);
    node.stall();
    CHECK(node.why_spared() == "no restart is left");
  }
  SECTION("there are no others") {
    for (const bool all_ranks_here : {true, false}) {
      CheapNode node(1, all_ranks_here);
      node[0].state = 'T';
      CHECK(node.pass(61s).back().behind == Ranks{0});
      node.detector.reported({});
      const StallStep next = node.look();
      CHECK(next.kind == (all_ranks_here ? Kind::Spared : Kind::Lost));
    }
  }
}

TEST_CASE("16.3: unasked, the next one is lost once the job has got further", "[stall]") {
  CheapNode node(2);
  node.stall();
  CHECK(node.pass(2s).back().kind == Kind::Lost);
  node.another_attempt();
  // In place, at the same step, and the file server is still away.
  for (int rank : {0, 1}) node.say(rank, "backward", 12);
  node.stall();
  CHECK(node.why_spared() == "the job has got no further since a rank was lost at step 12");
  node.another_attempt();
  node.train(13);
  node.stall();
  CHECK(node.pass(2s).back().kind == Kind::Lost);
}

TEST_CASE("16.3: unasked, a halted rank is lost though the others say nothing of a wait",
          "[stall]") {
  CheapNode node(3);
  node[2].state = 'T';
  CHECK(node.pass(61s).back().behind == Ranks{2});
  node.detector.reported({});
  CHECK(node.pass(2s).back().kind == Kind::Lost);
}
