// How often a page is written that takes the longer the more there is to tell.
#include "trainer/report/page_schedule.h"

#include <vector>

#include "tests/testing/catch.h"

using namespace ddprun::trainer;

namespace {

// After which of `epochs` there is a page, where each takes `epoch_s` and a page `page_s`.
std::vector<int> pages_of(int epochs, double epoch_s, double page_s) {
  PageSchedule schedule;
  std::vector<int> pages;
  double now_s = 0;
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    now_s += epoch_s;
    if (!schedule.due(now_s)) continue;
    pages.push_back(epoch);
    schedule.written(now_s, now_s + page_s);
    now_s += page_s;
  }
  return pages;
}

}  // namespace

TEST_CASE("a page that takes no time comes after each epoch", "[trainer][report]") {
  CHECK(pages_of(4, 60, 0.5) == std::vector<int>{1, 2, 3, 4});
  CHECK(pages_of(4, 0.25, 0) == std::vector<int>{1, 2, 3, 4});
}

TEST_CASE("pages take a hundredth of the time and no more", "[trainer][report]") {
  CHECK(pages_of(20, 8, 0.5) == std::vector<int>{1, 8, 15});  // Each 50 s: of 56.
  CHECK(pages_of(1000, 1, 5).size() == 3);                    // Of 500 s each.
}

TEST_CASE("the first epoch has a page, however long it takes", "[trainer][report]") {
  CHECK(pages_of(3, 1, 100) == std::vector<int>{1});
}
