// The bucket plan and one backward's progress, without tensors.
#include "worker/torch/gradient_buckets.h"

#include "tests/testing/catch.h"

namespace ddprun::worker {
namespace {

using Gradients = std::vector<std::size_t>;

constexpr BucketLimits small_limits{100, 1000, 0};

std::vector<Gradients> groups(const BucketPlan& plan) {
  std::vector<Gradients> result;
  for (const Bucket& bucket : plan.buckets) result.push_back(bucket.gradients);
  return result;
}

TEST_CASE("the first bucket is full early and the others at their own limit", "[worker][ddp]") {
  const std::vector<GradientSize> sizes(6, GradientSize{512, 0});

  const BucketPlan plan = plan_buckets(sizes, reverse_order(6), small_limits);

  CHECK(groups(plan) == std::vector<Gradients>{{5}, {4, 3}, {2, 1}, {0}});
}

TEST_CASE("gradients of different dtypes never share a bucket", "[worker][ddp]") {
  const std::vector<GradientSize> sizes{{64, 0}, {64, 1}, {64, 0}, {64, 1}};

  const BucketPlan plan = plan_buckets(sizes, reverse_order(4), {1 << 20, 1 << 20, 0});

  CHECK(groups(plan) == std::vector<Gradients>{{3, 1}, {2, 0}});
}

TEST_CASE("buckets are reduced in the order in which they fill up", "[worker][ddp]") {
  const std::vector<GradientSize> sizes{{64, 0}, {128, 1}, {64, 0}};

  const BucketPlan plan = plan_buckets(sizes, {0, 1, 2}, {128, 128, 0});

  CHECK(groups(plan) == std::vector<Gradients>{{1}, {0, 2}});
}

TEST_CASE("the last gradients to arrive travel in a small bucket of their own", "[worker][ddp]") {
  const std::vector<GradientSize> sizes{{64, 0}, {64, 0}, {5000, 0}, {5000, 0}};

  const BucketPlan plan = plan_buckets(sizes, reverse_order(4), {1 << 20, 1 << 20, 256});

  CHECK(groups(plan) == std::vector<Gradients>{{3, 2}, {1, 0}});
  CHECK(plan.buckets[0].bytes == region_bytes({sizes[3], sizes[2]})[0]);  // Without theirs.
  CHECK(plan.buckets[1].offset == plan.buckets[0].bytes);
  CHECK(plan.buckets[1].bytes == 128);
  CHECK(groups(plan_buckets(sizes, reverse_order(4), {1 << 20, 1 << 20, 1 << 20})).size() == 1);
  CHECK(groups(plan_buckets(sizes, reverse_order(4), {1 << 20, 1 << 20, 128})) == groups(plan));
  CHECK(groups(plan_buckets(sizes, reverse_order(4), {1 << 20, 1 << 20, 127})) ==
        std::vector<Gradients>{{3, 2, 1}, {0}});
  CHECK(groups(plan_buckets({{64, 0}, {5000, 0}}, reverse_order(2), {1 << 20, 1 << 20, 64})) ==
        std::vector<Gradients>{{1}, {0}});
}

TEST_CASE("two plans are the same where each gradient has its place in both", "[worker][ddp]") {
  const std::vector<GradientSize> sizes(4, GradientSize{512, 0});
  const auto plan = [&](const Gradients& order, std::size_t bytes) {
    return plan_buckets(sizes, order, {bytes, bytes, 0});
  };
  CHECK(plan({0, 1, 2, 3}, 1024) == plan({0, 1, 2, 3}, 1024));
  CHECK_FALSE(plan({0, 1, 2, 3}, 1024) == plan({0, 1, 2, 3}, 512));
  CHECK_FALSE(plan({0, 1, 2, 3}, 1024) == plan({0, 2, 1, 3}, 1024));  // In other buckets.
  CHECK_FALSE(plan({0, 1, 2, 3}, 1024) == plan({1, 0, 2, 3}, 1024));  // Elsewhere in its bucket.
  CHECK_FALSE(plan({0, 1, 2, 3}, 1024) == plan({0, 1}, 1024));        // Without two of them.
}

TEST_CASE("gradients lie aligned, without overlap, within the region for any order",
          "[worker][ddp]") {
  const std::vector<GradientSize> sizes{{4, 0}, {100, 0}, {0, 0}, {65, 1}, {64, 0}, {2, 1}};
  const std::vector<std::size_t> bytes = region_bytes(sizes);

  for (const Gradients& order : {reverse_order(6), Gradients{3, 1, 0, 5, 2, 4}}) {
    const BucketPlan plan = plan_buckets(sizes, order, {64, 64, 64});

    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const GradientPlace& place = plan.places[i];
      CHECK(place.offset % gradient_alignment_bytes == 0);
      CHECK(place.offset + sizes[i].bytes <= bytes[sizes[i].region]);
      const Bucket& bucket = plan.buckets[place.bucket.value()];
      CHECK(bucket.offset <= place.offset);
      CHECK(place.offset + sizes[i].bytes <= bucket.offset + bucket.bytes);
      for (std::size_t j = 0; j < i; ++j) {
        if (sizes[j].region != sizes[i].region) continue;
        CHECK((place.offset + sizes[i].bytes <= plan.places[j].offset ||
               plan.places[j].offset + sizes[j].bytes <= place.offset));
      }
    }
  }
}

TEST_CASE("a gradient that is alone goes when it is there, and holds up no other's bucket",
          "[worker][ddp][sparse]") {
  const std::vector<GradientSize> sizes{{512, 0}, {0, 0, true}, {400, 0}, {0, 1, true}, {80, 0}};

  const BucketPlan plan = plan_buckets(sizes, reverse_order(5), {1000, 1000, 0});

  CHECK(groups(plan) == std::vector<Gradients>{{3}, {1}, {4, 2, 0}});
}

TEST_CASE("an order may leave gradients out but not name one twice", "[worker][ddp]") {
  const std::vector<GradientSize> sizes(3, GradientSize{64, 0});

  CHECK_FALSE(plan_buckets(sizes, {2, 0}, small_limits).places[1].bucket.has_value());
  CHECK_THROWS_AS(plan_buckets(sizes, {2, 2}, small_limits), std::invalid_argument);
  CHECK_THROWS_AS(plan_buckets(sizes, {3}, small_limits), std::invalid_argument);
  CHECK(plan_buckets({}, {}, small_limits).buckets.empty());
}

TEST_CASE("a full bucket waits for those before it", "[worker][ddp]") {
  const std::vector<GradientSize> sizes(4, GradientSize{512, 0});
  const BucketPlan plan = plan_buckets(sizes, reverse_order(4), small_limits);  // {3} {2, 1} {0}
  BucketProgress progress(plan);

  CHECK(progress.mark(0));
  CHECK_FALSE(progress.take_full_bucket().has_value());
  CHECK(progress.mark(3));
  CHECK(progress.take_full_bucket() == 0u);
  CHECK_FALSE(progress.take_full_bucket().has_value());
  CHECK(progress.missing() == Gradients{1, 2});
  CHECK(progress.mark(1));
  CHECK(progress.mark(2));
  CHECK(progress.take_full_bucket() == 1u);
  CHECK(progress.take_full_bucket() == 2u);

  CHECK(progress.all_taken());
  CHECK_FALSE(progress.take_full_bucket().has_value());
  CHECK(progress.arrival_order() == Gradients{0, 3, 1, 2});
  CHECK_FALSE(progress.mark(2));

  // The next backward has another plan, in which gradient 1 does not take part.
  progress.restart(plan_buckets(sizes, {2, 3, 0}, small_limits));  // {2} {3, 0}
  CHECK_FALSE(progress.all_taken());
  CHECK(progress.arrival_order().empty());
  CHECK(progress.missing() == Gradients{0, 2, 3});
  CHECK_FALSE(progress.mark(1));
  for (const std::size_t gradient : {3, 2, 0}) CHECK(progress.mark(gradient));
  CHECK(progress.take_full_bucket() == 0u);
  CHECK(progress.take_full_bucket() == 1u);
  CHECK(progress.all_taken());
}

TEST_CASE(
    "between ranks that share memory each adds up as much of a bucket, up to a network's size",
    "[worker][ddp]") {
  constexpr std::size_t mib = std::size_t{1} << 20;
  CHECK(BucketLimits::shared_memory(2).bytes == mib);
  CHECK(BucketLimits::shared_memory(8).bytes == 4 * mib);
  CHECK(BucketLimits::shared_memory(8).first_bytes == mib);
  CHECK(BucketLimits::shared_memory(1).last_bytes == mib / 2);
  CHECK(BucketLimits::shared_memory(8).last_bytes == mib);
  CHECK(BucketLimits::shared_memory(500).bytes == BucketLimits{}.bytes);
}

}  // namespace
}  // namespace ddprun::worker
