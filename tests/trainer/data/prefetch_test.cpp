// What the loader's threads do, without images: order, errors and ends in the middle. Meant for
// ThreadSanitizer too.
#include "trainer/data/prefetch.h"

#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>

#include "tests/testing/catch.h"
#include "tests/testing/patience.h"

using namespace ddprun::trainer;
using ddprun::testing::patience;
using namespace std::chrono_literals;

namespace {

using Numbers = Prefetch<std::unique_ptr<std::int64_t>>;

Numbers::Maker square_maker() {
  // Memory of the maker's own, which a second thread's use would be a data race on.
  const auto calls = std::make_shared<int>(0);
  return [calls](std::int64_t job) {
    ++*calls;
    return std::make_unique<std::int64_t>(job * job);
  };
}

}  // namespace

TEST_CASE("results come in the order of the jobs, however many threads", "[trainer][data]") {
  for (const int threads : {1, 2, 3, 8}) {
    Numbers numbers(500, threads, square_maker);
    for (std::int64_t job = 0; job < 500; ++job) REQUIRE(*numbers.next() == job * job);
  }
}

TEST_CASE("an error is thrown in its turn, and the jobs after it go on", "[trainer][data]") {
  Numbers numbers(100, 3, [] {
    return [](std::int64_t job) {
      if (job % 7 == 3) throw std::runtime_error("job " + std::to_string(job));
      return std::make_unique<std::int64_t>(job);
    };
  });
  for (std::int64_t job = 0; job < 100; ++job) {
    if (job % 7 == 3) {
      REQUIRE_THROWS_WITH(numbers.next(), "job " + std::to_string(job));
    } else {
      REQUIRE(*numbers.next() == job);
    }
  }
}

TEST_CASE("a thread that cannot begin says so with each of its jobs", "[trainer][data]") {
  Numbers numbers(4, 2, []() -> Numbers::Maker { throw std::runtime_error("no decoder"); });
  for (int job = 0; job < 4; ++job) REQUIRE_THROWS_WITH(numbers.next(), "no decoder");
}

TEST_CASE("threads work ahead no further than their slots", "[trainer][data]") {
  std::atomic<std::int64_t> begun = 0;
  {
    Numbers numbers(1000, 2, [&] {
      return [&](std::int64_t job) {
        ++begun;
        return std::make_unique<std::int64_t>(job);
      };
    });
    for (std::int64_t taken = 1; taken <= 100; ++taken) {
      numbers.next();
      REQUIRE(begun <= taken + 4);
    }
  }  // 896 jobs were never wanted.
  CHECK(begun <= 104);
}

TEST_CASE("a queue may be given up at any time, and then none of its threads works on",
          "[trainer][data]") {
  const auto working = std::make_shared<std::atomic<int>>(0);  // Makers, each a thread's own.
  std::packaged_task<int()> give_up([working] {
    const auto maker = [working] {
      ++*working;
      const std::shared_ptr<void> token(nullptr, [working](void*) { --*working; });
      return [token](std::int64_t job) { return std::make_unique<std::int64_t>(job); };
    };
    int left = 0;
    for (int taken = 0; taken < 20; ++taken) {
      {
        Numbers numbers(1000, 4, maker);
        for (int i = 0; i < taken; ++i) numbers.next();
      }
      left += *working;
    }
    const Numbers nothing(0, 2, maker);
    return left;
  });
  auto left = give_up.get_future();
  // On a thread that is left alone: one that waits for ever is then a failure and no hang.
  std::thread(std::move(give_up)).detach();

  REQUIRE(left.wait_for(patience(30s)) == std::future_status::ready);
  CHECK(left.get() == 0);
}
