// Which part of an image becomes a sample, at what size, shifted how and mirrored or not: what
// torchvision's Resize, CenterCrop, RandomResizedCrop, RandomCrop(padding) and RandomHorizontalFlip
// choose. What is drawn at random is a function of (seed, epoch, sample), so it depends neither on
// the number of workers nor on threads, and a resumed run draws what the interrupted one would
// have drawn. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/data/images/image_view.h"

namespace ddprun::trainer {

struct AugmentOptions {
  bool flip = false;                 // RandomHorizontalFlip(): every second image.
  bool pad_crop = false;             // RandomCrop(side, padding)
  bool random_resized_crop = false;  // RandomResizedCrop(side, scale, ratio)
  std::int64_t padding = 4;          // Pixels of zero bytes.
  double scale_min = 0.08;           // Share of the image's area that a crop has.
  double scale_max = 1.0;
  double ratio_min = 3.0 / 4;  // Width of a crop / its height.
  double ratio_max = 4.0 / 3;
};

struct TransformOptions {
  std::int64_t side = 0;         // Of samples, in pixels.
  std::int64_t resize_side = 0;  // Resize the shorter side to this, then cut the middle; >= side.
  AugmentOptions augment;
};

// "resized to 256, centre crop of 224, random flip"
std::string describe(const TransformOptions& options);

struct SampleKey {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t sample = 0;  // Index in the data set.
};

// From left to right: `box` of the image -> resized -> window of side x side in it, at
// (window_top, window_left) -> shifted, with zero bytes where nothing is -> mirrored.
struct SamplePlan {
  std::int64_t box_top = 0;
  std::int64_t box_left = 0;
  ImageSize box;
  ImageSize resized;
  std::int64_t window_top = 0;
  std::int64_t window_left = 0;
  std::int64_t shift_down = 0;  // Rows by which the window's content moves down; may be negative.
  std::int64_t shift_right = 0;
  bool flip = false;
};

SamplePlan plan_sample(ImageSize image, const TransformOptions& options, const SampleKey& key);

}  // namespace ddprun::trainer
