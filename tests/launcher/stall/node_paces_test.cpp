// What a node tells of its ranks' paces, and what comes of it at the node that asked.
#include "launcher/stall/node_paces.h"

#include "tests/testing/catch.h"

using namespace ddprun::launcher;

namespace {

RankProgress trains(double step_s, double wait_s, double age_s = 0.1) {
  return {.step_s = step_s, .wait_s = wait_s, .age_s = age_s};
}

std::optional<NodePaces> parsed(const std::string& text) {
  return parse_paces(text, 3, "host3", /*world_size=*/100);
}

}  // namespace

TEST_CASE("16.3: what a node tells of its paces arrives as it was", "[stall]") {
  NodePaces told;
  told.add(0, trains(0.2, 0.05));
  told.add(99, trains(0.2, 0.3));  // Waits of the last steps, on an average of others.
  told.add(8, trains(0, 0));       // Says no times.
  const std::string text = paces_to_json(told);
  CHECK(text == R"({"stands":false,"ranks":[{"rank":0,"own_us":150000,"step_us":200000},)"
                R"({"rank":99,"own_us":0,"step_us":200000}]})");
  const auto heard = parsed(text);
  REQUIRE(heard);
  CHECK(heard->host == "host3");
  CHECK_FALSE(heard->stands);
  REQUIRE(heard->ranks.size() == 2);
  CHECK(heard->ranks[0].rank == 0);
  CHECK(heard->ranks[1].rank == 99);
  CHECK(heard->ranks[0].node == 3);
  CHECK(heard->ranks[0].host == "host3");
  CHECK(heard->ranks[0].own_s == Approx(0.15));
  CHECK(heard->ranks[0].step_s == Approx(0.2));
}

TEST_CASE("16.3: while ranks of one node stand, none of the job has a pace", "[stall]") {
  NodePaces trains_on, stands;
  trains_on.add(0, trains(0.2, 0.1, 1.5));
  stands.add(1, trains(0.2, 0.1, 1.7));
  CHECK(paces_of({trains_on}).size() == 1);
  CHECK(paces_of({trains_on, trains_on}).size() == 2);
  const auto heard = parsed(paces_to_json(stands));
  REQUIRE(heard);
  CHECK(heard->stands);
  CHECK(paces_of({trains_on, *heard}).empty());
}

TEST_CASE("16.3: of what is no pace nothing is taken", "[stall]") {
  // Of a node that is too old to know the question, among others.
  for (const char* text : {"", "{", "[]", "7", R"({"lines": []})", R"({"ranks": 7})"}) {
    CHECK_FALSE(parsed(text));
  }
  for (const char* text :
       {"7", "[]", "{}", R"({"rank": 100, "own_us": 1, "step_us": 1})",
        R"({"rank": -1, "own_us": 1, "step_us": 1})", R"({"rank": 1, "own_us": -1, "step_us": 1})",
        R"({"rank": 1, "own_us": 1, "step_us": 0})", R"({"rank": 1, "own_us": 1.5, "step_us": 2})",
        R"({"rank": 1, "own_us": 1, "step_us": 18446744073709551615})",
        R"({"rank": 4294967297, "own_us": 1, "step_us": 1})", R"({"rank": "1"})"}) {
    const auto heard = parsed(R"({"stands": 1, "ranks": [)" + std::string(text) + "]}");
    INFO(text);
    REQUIRE(heard);
    CHECK_FALSE(heard->stands);
    CHECK(heard->ranks.empty());
  }
  NodePaces told;
  told.add(0, trains(1e300, 0));
  CHECK(told.ranks.empty());
}
