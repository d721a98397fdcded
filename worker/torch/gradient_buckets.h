// Which gradients travel together, where each lies in flat memory, and which bucket may go next.
// Sizes and orders in, a plan out; no tensors.
//
//   arrival order of gradients in backward:   fc.bias fc.weight | conv4.weight ... | conv1.weight
//   buckets, in the order they are reduced:         0           |        1         |      2
//
// The buckets of one dtype lie one after the other in one region of memory. Its size does not
// depend on the order, so a plan with another order fits the same region. The sizes follow
// PyTorch's DDP (Li et al., VLDB 2020, arXiv 2006.15704, section 3.2): a small first bucket so that
// communication starts early, then large ones. New here is the small last bucket: its reduction is
// the one that no computation hides. A core: no sockets, threads or clock.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

namespace ddprun::worker {

struct BucketLimits {
  std::size_t first_bytes = std::size_t{1} << 20;  // A bucket is full once it has so many bytes,
  std::size_t bytes = std::size_t{25} << 20;       // so one large gradient may exceed the limit.
  std::size_t last_bytes = std::size_t{1} << 20;   // At most; 0 = no separate last bucket.

  // For ranks that share a host's memory: each adds up 512 KiB of every bucket, while that is still
  // in the caches. There is no network whose latency large buckets would spread
  // (docs/measurements/training.md has what this wins).
  static BucketLimits shared_memory(int world_size);

  // One bucket for each dtype, full when its last gradient is there: with one dtype nothing is
  // reduced before backward has ended.
  static BucketLimits whole_step() {
    constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();
    return {unlimited, unlimited, 0};
  }
};

// What the plan must know of one gradient. Gradients are named by their index.
struct GradientSize {
  std::size_t bytes = 0;
  std::size_t region = 0;  // One region per dtype.
  bool alone = false;      // Shares a bucket with no other: a sparse one, which lies in no memory.
};

struct Bucket {
  std::size_t region = 0;
  std::size_t offset = 0;  // In bytes from the start of the region; a multiple of the alignment.
  std::size_t bytes = 0;   // With the padding after each gradient.
  std::vector<std::size_t> gradients;
};

struct GradientPlace {
  std::optional<std::size_t> bucket;  // Nothing: the order left this gradient out.
  std::size_t offset = 0;             // In bytes from the start of the region.

  bool operator==(const GradientPlace&) const = default;
};

struct BucketPlan {
  std::vector<Bucket> buckets;        // In the order of their reduction.
  std::vector<GradientPlace> places;  // By gradient.

  // Of the same gradients: their places say which buckets there are.
  bool operator==(const BucketPlan& other) const { return places == other.places; }
};

// Every gradient starts at a multiple of this many bytes, which vector kernels and NCCL like.
inline constexpr std::size_t gradient_alignment_bytes = 64;

// The size of each region, enough for a plan of any order. Indexed by region.
std::vector<std::size_t> region_bytes(const std::vector<GradientSize>& sizes);

// Fills buckets with the gradients of `order`, which names each gradient at most once. Throws
// std::invalid_argument for an order that names a gradient twice or one that does not exist.
BucketPlan plan_buckets(const std::vector<GradientSize>& sizes,
                        const std::vector<std::size_t>& order, const BucketLimits& limits);

// n-1 ... 0: the order in which backward yields gradients if parameters are registered in the
// order of their use; the plan until the true order is known.
std::vector<std::size_t> reverse_order(std::size_t gradients);

// One backward's progress. All ranks must reduce buckets in the same order, so a bucket that is
// full waits for those before it.
class BucketProgress {
 public:
  explicit BucketProgress(const BucketPlan& plan) { restart(plan); }

  void restart(const BucketPlan& plan);

  // Notes that the gradient is there. False: it was there before (or is in no bucket).
  bool mark(std::size_t gradient);

  // The next bucket that may be reduced, once each; nothing while the next one is not full.
  std::optional<std::size_t> take_full_bucket();

  bool all_taken() const { return next_ == missing_in_bucket_.size(); }
  bool is_marked(std::size_t gradient) const { return marked_flags_[gradient]; }
  std::vector<std::size_t> missing() const;  // Planned gradients that are not marked, ascending.
  std::size_t missing_count() const { return planned_ - arrivals_.size(); }
  const std::vector<std::size_t>& arrival_order() const { return arrivals_; }

 private:
  std::vector<std::optional<std::size_t>> bucket_of_;
  std::vector<std::size_t> missing_in_bucket_;
  std::vector<bool> marked_flags_;
  std::vector<std::size_t> arrivals_;
  std::size_t planned_ = 0;  // Gradients that are in a bucket.
  std::size_t next_ = 0;
};

}  // namespace ddprun::worker
