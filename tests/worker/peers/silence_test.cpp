// Whose fault a silence is, by what the others hear.
#include "worker/peers/silence.h"

#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using namespace ddprun::worker;
using ddprun::testing::contains;

namespace {

const RankSet r0{0}, r1{1}, r2{2}, r3{3};
const std::optional<RankSet> none;
const std::vector<std::string> names{"rank 0 (on 10.0.0.1)", "rank 1 (on 10.0.0.2)",
                                     "rank 2 (on 10.0.0.3)", "rank 3 (on 10.0.0.4)"};

}  // namespace

TEST_CASE("a link is cut where others hear both of its ends", "[worker][silence]") {
  const Silence seen_by_0 = judge_silence(0, 1, {none, none, r0 | r1 | r3, r0 | r2});
  CHECK(seen_by_0.kind == Silence::Kind::LinkCut);
  CHECK(seen_by_0.witnesses == r2);
  const Silence seen_by_1 = judge_silence(1, 0, {none, none, r0 | r1 | r3, none});

  const std::string text = to_string(seen_by_0, 0, 1, names, "5 s");
  CHECK(text == to_string(seen_by_1, 1, 0, names, "5 s"));
  CHECK(text ==
        "the link between rank 0 (on 10.0.0.1) and rank 1 (on 10.0.0.2) is cut: neither has heard "
        "the other for 5 s, while rank 2 can reach both");
}

TEST_CASE("the two ends are no witnesses of each other", "[worker][silence]") {
  // A late answer of the silent one itself; and what this rank would say of it.
  CHECK(judge_silence(0, 1, {r1, r0 | r1 | r2, r0}).kind == Silence::Kind::PeerGone);
}

TEST_CASE("a peer that nobody hears is gone, one who hears nobody is cut off itself",
          "[worker][silence]") {
  const Silence gone = judge_silence(0, 1, {none, none, r0 | r3, r0 | r2});
  CHECK(gone.kind == Silence::Kind::PeerGone);
  CHECK(contains(to_string(gone, 0, 1, names, "5 s"), "rank 1 (on 10.0.0.2) is gone"));

  const Silence alone = judge_silence(0, 1, {none, none, none, none});
  CHECK(alone.kind == Silence::Kind::SelfLost);
  CHECK(contains(to_string(alone, 0, 1, names, "5 s"), "rank 0 (on 10.0.0.1) is cut off"));
}

TEST_CASE("of hundreds of ranks each is a witness, and is heard for itself", "[worker][silence]") {
  std::vector<std::optional<RankSet>> heard(300, r0 | r1);
  CHECK(judge_silence(0, 257, heard).kind == Silence::Kind::PeerGone);  // 257 = 4 * 64 + 1.
  heard[299]->insert(257);
  const Silence silence = judge_silence(0, 257, heard);
  CHECK(silence.kind == Silence::Kind::LinkCut);
  CHECK(silence.witnesses == RankSet{299});
}

TEST_CASE("two ranks alone cannot tell a link from a host", "[worker][silence]") {
  const Silence silence = judge_silence(1, 0, {none, none});
  CHECK(silence.kind == Silence::Kind::Unknown);
  CHECK(contains(to_string(silence, 1, 0, {names[0], names[1]}, "5 s"),
                 "or the link between it and rank 1 was cut"));
}
