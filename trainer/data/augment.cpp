// torchvision's rules of choice, draw for draw, over numbers that are computed and not consumed.
#include "trainer/data/augment.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "trainer/data/philox.h"

namespace ddprun::trainer {
namespace {

constexpr int crop_tries = 10;  // As torchvision.
// Each use has words of its own, so that another augmentation switched on changes no other draw.
enum Draw : std::uint32_t { flip_and_shift = 0, first_crop_try = 1 };

using Words = std::array<std::uint32_t, 4>;

Words draw(const SampleKey& key, std::uint32_t what) {
  const auto sample = static_cast<std::uint64_t>(key.sample);
  return philox({static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(sample >> 32),
                 static_cast<std::uint32_t>(key.epoch), what},
                {static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32)});
}

double uniform(std::uint32_t word, double min, double max) {
  return min + (max - min) * (static_cast<double>(word) / 4294967296.0);
}

// 0 .. count-1
std::int64_t below(std::uint32_t word, std::int64_t count) {
  return static_cast<std::int64_t>((std::uint64_t{word} * static_cast<std::uint64_t>(count)) >> 32);
}

// As Python's round(): halves go to the even neighbour.
std::int64_t rounded(double value) { return static_cast<std::int64_t>(std::nearbyint(value)); }

struct Crop {
  std::int64_t top, left, height, width;
};

// RandomResizedCrop.get_params: the middle of the image when ten draws do not fit into it.
Crop random_crop(ImageSize image, const AugmentOptions& options, const SampleKey& key) {
  const auto height = static_cast<double>(image.height);
  const auto width = static_cast<double>(image.width);
  for (std::uint32_t i = 0; i < crop_tries; ++i) {
    const Words words = draw(key, first_crop_try + i);
    const double area = height * width * uniform(words[0], options.scale_min, options.scale_max);
    const double ratio =
        std::exp(uniform(words[1], std::log(options.ratio_min), std::log(options.ratio_max)));
    // The ratio is drawn as a logarithm, as torchvision does: 3/4 and 4/3 are then equally likely.
    const std::int64_t w = rounded(std::sqrt(area * ratio));
    const std::int64_t h = rounded(std::sqrt(area / ratio));
    if (w < 1 || w > image.width || h < 1 || h > image.height) continue;
    return {below(words[2], image.height - h + 1), below(words[3], image.width - w + 1), h, w};
  }
  // One side is cut where the shape of the image is beyond the limits, and none where it is not.
  const auto at_most = [](std::int64_t side, double longest) {
    return std::min(side, std::max<std::int64_t>(1, rounded(longest)));
  };
  const std::int64_t w = at_most(image.width, height * options.ratio_max);
  const std::int64_t h = at_most(image.height, width / options.ratio_min);
  return {(image.height - h) / 2, (image.width - w) / 2, h, w};
}

// Resize(resize_side): the shorter side gets it, the longer one follows, rounded down.
ImageSize resized_to(ImageSize image, std::int64_t resize_side) {
  const auto longer = [&](std::int64_t own, std::int64_t shorter) {
    return static_cast<std::int64_t>(static_cast<double>(resize_side * own) /
                                     static_cast<double>(shorter));
  };
  if (image.width <= image.height) {
    return {longer(image.height, image.width), resize_side};
  }
  return {resize_side, longer(image.width, image.height)};
}

}  // namespace

std::string describe(const TransformOptions& options) {
  const AugmentOptions& augment = options.augment;
  std::string text;
  if (augment.random_resized_crop) {
    text = fmt::format("random resized crop to {0}x{0} (area {1:g} to {2:g})", options.side,
                       augment.scale_min, augment.scale_max);
  } else if (options.resize_side > options.side) {
    text = fmt::format("resized to {}, centre crop of {}", options.resize_side, options.side);
  } else {
    text = fmt::format("{0}x{0} pixels", options.side);
  }
  if (augment.pad_crop) text += fmt::format(", random crop with {} of padding", augment.padding);
  if (augment.flip) text += ", random flip";
  return text;
}

SamplePlan plan_sample(ImageSize image, const TransformOptions& options, const SampleKey& key) {
  SamplePlan plan;
  const AugmentOptions& augment = options.augment;
  if (augment.random_resized_crop) {
    const Crop crop = random_crop(image, augment, key);
    plan.box_top = crop.top;
    plan.box_left = crop.left;
    plan.box = {crop.height, crop.width};
    plan.resized = {options.side, options.side};
  } else {
    plan.box = image;
    plan.resized = resized_to(image, options.resize_side);
    plan.window_top = rounded(static_cast<double>(plan.resized.height - options.side) / 2);
    plan.window_left = rounded(static_cast<double>(plan.resized.width - options.side) / 2);
  }
  const Words words = draw(key, flip_and_shift);
  if (augment.flip) plan.flip = words[0] >> 31 != 0;
  if (augment.pad_crop) {
    plan.shift_down = augment.padding - below(words[1], 2 * augment.padding + 1);
    plan.shift_right = augment.padding - below(words[2], 2 * augment.padding + 1);
  }
  return plan;
}

}  // namespace ddprun::trainer
