// Whose state a new attempt goes on from.
#include "worker/state_lead.h"

#include "tests/testing/catch.h"

using namespace ddprun::worker;

namespace {

const StatePosition none;

// Every world of up to 4 ranks, each with no state or one of these.
template <class Body>
void for_each_world(const std::vector<StatePosition>& choices, const Body& body) {
  for (std::size_t world = 1; world <= 4; ++world) {
    std::size_t cases = 1;
    for (std::size_t i = 0; i < world; ++i) cases *= choices.size();
    for (std::size_t number = 0; number < cases; ++number) {
      std::vector<StatePosition> ranks;
      for (std::size_t rest = number; ranks.size() < world; rest /= choices.size()) {
        ranks.push_back(choices[rest % choices.size()]);
      }
      body(ranks);
    }
  }
}

}  // namespace

TEST_CASE("new processes alone have nothing to go on from", "[worker][recovery]") {
  CHECK_FALSE(find_lead({none}).any);
  CHECK_FALSE(find_lead({none, none, none}).any);
  CHECK(find_lead({none, none}).root == 0);  // Who reads the checkpoint.
}

TEST_CASE("a state before the first step is one", "[worker][recovery]") {
  const StateLead lead = find_lead({none, {0, 0}});
  CHECK(lead.any);
  CHECK(lead.root == 1);
  CHECK_FALSE(lead.complete);
}

TEST_CASE("at the same step the one that has finished the epoch leads", "[worker][recovery]") {
  CHECK(find_lead({{8, 0}, {8, 1}}).root == 1);
  CHECK_FALSE(find_lead({{8, 0}, {8, 1}}).complete);
}

TEST_CASE("no rank is ever led back, and the lowest of equals leads", "[worker][recovery]") {
  for_each_world({none, {0, 0}, {7, 0}, {8, 0}, {8, 1}}, [](const auto& ranks) {
    const StateLead lead = find_lead(ranks);
    const StatePosition& of_lead = ranks[static_cast<std::size_t>(lead.root)];
    bool all_equal = true;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      REQUIRE(of_lead >= ranks[rank]);
      if (static_cast<int>(rank) < lead.root) REQUIRE(of_lead > ranks[rank]);
      all_equal = all_equal && ranks[rank] == of_lead;
    }
    REQUIRE(lead.any == (of_lead != none));
    if (lead.any) REQUIRE(lead.complete == all_equal);
  });
}
