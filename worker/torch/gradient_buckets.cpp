// Filling buckets in the order in which gradients come, and what of them is there. Buckets of
// several dtypes fill side by side, so a bucket's place in the order of reduction is that of its
// last gradient.
#include "worker/torch/gradient_buckets.h"

#include <algorithm>
#include <cassert>
#include <stdexcept>
#include <string>

namespace ddprun::worker {
namespace {

std::size_t padded(std::size_t bytes) {
  return (bytes + gradient_alignment_bytes - 1) / gradient_alignment_bytes *
         gradient_alignment_bytes;
}

std::size_t count_regions(const std::vector<GradientSize>& sizes) {
  std::size_t regions = 0;
  for (const GradientSize& size : sizes) regions = std::max(regions, size.region + 1);
  return regions;
}

void check_order(std::size_t gradients, const std::vector<std::size_t>& order) {
  std::vector<bool> seen(gradients, false);
  for (const std::size_t gradient : order) {
    if (gradient >= gradients || seen[gradient]) {
      throw std::invalid_argument("bucket order names gradient " + std::to_string(gradient) +
                                  (gradient >= gradients ? ", which does not exist" : " twice") +
                                  " (there are " + std::to_string(gradients) + ")");
    }
    seen[gradient] = true;
  }
}

// A bucket while it is being filled, and when its last gradient arrives.
struct OpenBucket {
  Bucket bucket;
  std::size_t last_position = 0;
};

// Cuts the end off the bucket that is reduced last: what arrives in the last moments of backward.
void split_last(std::vector<OpenBucket>& closed, const std::vector<GradientSize>& sizes,
                std::size_t last_bytes) {
  if (closed.empty()) return;
  Bucket& last = closed.back().bucket;
  std::size_t tail_bytes = 0;
  std::size_t tail = last.gradients.size();
  while (tail > 0 && tail_bytes + padded(sizes[last.gradients[tail - 1]].bytes) <= last_bytes) {
    tail_bytes += padded(sizes[last.gradients[--tail]].bytes);
  }
  if (tail == 0 || tail == last.gradients.size()) return;
  OpenBucket end{{last.region, 0, tail_bytes, {}}, closed.back().last_position};
  end.bucket.gradients.assign(last.gradients.begin() + static_cast<std::ptrdiff_t>(tail),
                              last.gradients.end());
  last.gradients.resize(tail);
  last.bytes -= tail_bytes;
  closed.push_back(std::move(end));
}

// Lays the buckets one after the other in their regions, in the order of their reduction.
BucketPlan lay_out(std::vector<OpenBucket> closed, const std::vector<GradientSize>& sizes) {
  BucketPlan plan;
  plan.places.resize(sizes.size());
  std::vector<std::size_t> used_bytes(count_regions(sizes), 0);
  for (OpenBucket& open : closed) {
    Bucket& bucket = open.bucket;
    bucket.offset = used_bytes[bucket.region];
    for (const std::size_t gradient : bucket.gradients) {
      plan.places[gradient] = {plan.buckets.size(), used_bytes[bucket.region]};
      used_bytes[bucket.region] += padded(sizes[gradient].bytes);
    }
    plan.buckets.push_back(std::move(bucket));
  }
  return plan;
}

}  // namespace

BucketLimits BucketLimits::shared_memory(int world_size) {
  // Added up while it is still in the caches: small buckets kept 96.8 % of the speed without
  // communication, those of 25 MiB 93.0 % (docs/measurements/training.md).
  const BucketLimits network;
  const std::size_t bytes =
      std::min(static_cast<std::size_t>(world_size) * (std::size_t{512} << 10), network.bytes);
  return {std::min(bytes, network.first_bytes), bytes, std::min(bytes, network.last_bytes)};
}

std::vector<std::size_t> region_bytes(const std::vector<GradientSize>& sizes) {
  std::vector<std::size_t> bytes(count_regions(sizes), 0);
  for (const GradientSize& size : sizes) bytes[size.region] += padded(size.bytes);
  return bytes;
}

BucketPlan plan_buckets(const std::vector<GradientSize>& sizes,
                        const std::vector<std::size_t>& order, const BucketLimits& limits) {
  check_order(sizes.size(), order);
  std::vector<OpenBucket> open(count_regions(sizes));
  std::vector<bool> had_first(open.size(), false);
  std::vector<OpenBucket> closed;
  const auto close = [&](std::size_t region) {
    if (open[region].bucket.gradients.empty()) return;
    open[region].bucket.region = region;
    closed.push_back(std::move(open[region]));
    open[region] = {};
    had_first[region] = true;
  };
  for (std::size_t position = 0; position < order.size(); ++position) {
    const GradientSize& size = sizes[order[position]];
    if (size.alone) {
      closed.push_back({{size.region, 0, padded(size.bytes), {order[position]}}, position});
      continue;
    }
    OpenBucket& current = open[size.region];
    current.bucket.gradients.push_back(order[position]);
    current.bucket.bytes += padded(size.bytes);
    current.last_position = position;
    const std::size_t limit = had_first[size.region] ? limits.bytes : limits.first_bytes;
    if (current.bucket.bytes >= limit) close(size.region);
  }
  for (std::size_t region = 0; region < open.size(); ++region) close(region);
  // A bucket may go when its last gradient is there, and those of other dtypes fill meanwhile.
  std::stable_sort(closed.begin(), closed.end(), [](const OpenBucket& a, const OpenBucket& b) {
    return a.last_position < b.last_position;
  });
  split_last(closed, sizes, limits.last_bytes);
  return lay_out(std::move(closed), sizes);
}

std::vector<std::size_t> reverse_order(std::size_t gradients) {
  std::vector<std::size_t> order(gradients);
  for (std::size_t i = 0; i < gradients; ++i) order[i] = gradients - 1 - i;
  return order;
}

void BucketProgress::restart(const BucketPlan& plan) {
  bucket_of_.resize(plan.places.size());
  for (std::size_t i = 0; i < plan.places.size(); ++i) bucket_of_[i] = plan.places[i].bucket;
  missing_in_bucket_.clear();
  planned_ = 0;
  for (const Bucket& bucket : plan.buckets) {
    missing_in_bucket_.push_back(bucket.gradients.size());
    planned_ += bucket.gradients.size();
  }
  marked_flags_.assign(plan.places.size(), false);
  arrivals_.clear();
  next_ = 0;
}

bool BucketProgress::mark(std::size_t gradient) {
  if (!bucket_of_[gradient] || marked_flags_[gradient]) return false;
  marked_flags_[gradient] = true;
  arrivals_.push_back(gradient);
  assert(missing_in_bucket_[*bucket_of_[gradient]] > 0);
  --missing_in_bucket_[*bucket_of_[gradient]];
  return true;
}

std::optional<std::size_t> BucketProgress::take_full_bucket() {
  if (all_taken() || missing_in_bucket_[next_] > 0) return std::nullopt;
  return next_++;
}

std::vector<std::size_t> BucketProgress::missing() const {
  std::vector<std::size_t> gradients;
  for (std::size_t i = 0; i < bucket_of_.size(); ++i) {
    if (bucket_of_[i] && !marked_flags_[i]) gradients.push_back(i);
  }
  return gradients;
}

}  // namespace ddprun::worker
