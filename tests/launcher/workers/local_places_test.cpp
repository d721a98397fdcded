// With how many workers a node goes on, and in which of its places: all states of up to four.
#include "launcher/workers/local_places.h"

#include <algorithm>

#include "tests/testing/catch.h"

using namespace ddprun::launcher;

namespace {

using Places = std::vector<LocalPlace>;
using Numbers = std::vector<int>;

constexpr LocalPlace kept{.kept = true};
constexpr LocalPlace spare{.spare = true};
constexpr LocalPlace no_hope{.no_hope = true};
constexpr LocalPlace empty{};

// Every list of one to four such places.
template <class Check>
void for_all_places(Check check) {
  const LocalPlace kinds[] = {kept, spare, no_hope, empty};
  for (int count = 1; count <= 4; ++count) {
    for (int number = 0; number < 1 << (2 * count); ++number) {
      Places places;
      for (int place = 0; place < count; ++place) {
        places.push_back(kinds[(number >> (2 * place)) & 3]);
      }
      check(places);
    }
  }
}

int count_kept(const Places& places) {
  return static_cast<int>(
      std::count_if(places.begin(), places.end(), [](const auto& place) { return place.kept; }));
}

}  // namespace

TEST_CASE("16.3: a node goes on with the workers that live, down to MIN, and waits for nobody",
          "[local_places]") {
  CHECK(workers_at_once({empty, empty}, 1) == 2);  // The first attempt, or all have died.
  CHECK(workers_at_once({kept, kept}, 1) == 2);
  CHECK(workers_at_once({kept, empty}, 1) == 1);
  CHECK(workers_at_once({kept, empty}, 2) == 2);
  CHECK(workers_at_once({kept, spare}, 1) == 2);
  CHECK(workers_at_once({kept, no_hope}, 1) == 2);
  CHECK(workers_at_once({kept, spare, empty}, 1) == 1);
  CHECK(workers_at_once({kept, spare, empty}, 2) == 3);
  for_all_places([](const Places& places) {
    const int all = static_cast<int>(places.size());
    for (int least = 1; least <= all; ++least) {
      const int workers = workers_at_once(places, least);
      REQUIRE(workers >= least);
      REQUIRE((workers == all || workers == count_kept(places)));
    }
  });
}

TEST_CASE("16.3: no kept process is lost, and a cold start has its place's number for local rank",
          "[local_places]") {
  CHECK(places_for({empty, kept, empty, kept}, 2) == Numbers{1, 3});
  CHECK(places_for({empty, kept, empty, kept}, 3) == Numbers{0, 1, 3});
  CHECK(places_for({empty, empty}, 2) == Numbers{0, 1});
  for_all_places([](const Places& places) {
    const int workers = workers_at_once(places, 1);
    // Meanwhile a parked process may die: as many workers, fewer kept ones.
    Places now = places;
    for (int dead = -1; dead < static_cast<int>(places.size()); ++dead) {
      if (dead >= 0) now[static_cast<std::size_t>(dead)].kept = false;
      const Numbers taken = places_for(now, workers);
      REQUIRE(static_cast<int>(taken.size()) == workers);
      REQUIRE(std::adjacent_find(taken.begin(), taken.end(), std::greater_equal<>()) ==
              taken.end());
      int found = 0;
      for (int local_rank = 0; local_rank < workers; ++local_rank) {
        const int place = taken[static_cast<std::size_t>(local_rank)];
        const bool lives = now[static_cast<std::size_t>(place)].kept;
        found += lives ? 1 : 0;
        if (!lives) REQUIRE(place == local_rank);
      }
      REQUIRE(found == count_kept(now));
    }
  });
}

TEST_CASE("16.3: an attempt makes way when all that it lacks are ready, or hopeless",
          "[local_places]") {
  CHECK_FALSE(can_grow({empty, empty}, {0, 1}));
  CHECK_FALSE(can_grow({empty, empty}, {0}));
  CHECK(can_grow({empty, spare}, {0}));
  CHECK(can_grow({empty, no_hope}, {0}));
  CHECK_FALSE(can_grow({spare, empty}, {0}));  // Of the place that has a worker.
  CHECK_FALSE(can_grow({empty, spare, empty}, {0}));
  CHECK(can_grow({spare, empty, no_hope}, {1}));
  CHECK_FALSE(can_grow({}, {}));
}
