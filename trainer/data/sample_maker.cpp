// The chain from index to floats, and what becomes of an image that cannot be read.
#include "trainer/data/sample_maker.h"

#include <fmt/format.h>

#include <algorithm>

#include "trainer/data/divide_up.h"

namespace ddprun::trainer {
namespace {

constexpr int replacements_max = 100;  // In a row; then the data as a whole cannot be read.
// A reduced image has at least twice the pixels that are wanted of it, so that what is lost by
// reducing is hardly to be seen. The same limit as that of Pillow's thumbnail().
constexpr std::int64_t pixels_kept = 2;

int reduce_max(const SamplePlan& plan) {
  int reduce = 8;
  while (reduce > 1 && (plan.box.height < pixels_kept * reduce * plan.resized.height ||
                        plan.box.width < pixels_kept * reduce * plan.resized.width)) {
    reduce /= 2;
  }
  return reduce;
}

// The plan's box in what was decoded: whole pixels around it, and where in them it lies.
ImageView box_of(const DecodedImage& decoded, const SamplePlan& plan, ResampleBox& box) {
  const int reduce = decoded.reduce;
  const std::int64_t top = plan.box_top / reduce;
  const std::int64_t left = plan.box_left / reduce;
  const auto up = [&](std::int64_t value) { return divide_up(value, reduce); };
  ImageView view = decoded.pixels;
  view.data = view.at(0, top - decoded.top, left - decoded.left);
  view.height = up(plan.box_top + plan.box.height) - top;
  view.width = up(plan.box_left + plan.box.width) - left;
  const auto inside = [&](std::int64_t value, std::int64_t begin, std::int64_t end) {
    return std::min(static_cast<double>(value) / reduce - static_cast<double>(begin),
                    static_cast<double>(end));
  };
  box = {inside(plan.box_top, top, view.height), inside(plan.box_left, left, view.width),
         inside(plan.box_top + plan.box.height, top, view.height),
         inside(plan.box_left + plan.box.width, left, view.width)};
  return view;
}

}  // namespace

SampleMaker::SampleMaker(const Dataset& dataset, const SampleOptions& options)
    : dataset_(dataset),
      options_(options),
      table_(options.normalization),
      reader_(dataset.make_reader()) {}

std::optional<Sample> SampleMaker::make(std::int64_t index, void* out,
                                        std::vector<SkippedImage>& skipped, const TakeJpeg& take) {
  std::int64_t image = index;
  for (int tries = 0;; ++tries) {
    try {
      write(image, index, out, take);
      return Sample{image, dataset_.label(image)};
    } catch (const ImageError& error) {
      if (options_.on_bad_image == BadImagePolicy::Fail) {
        throw DataError(fmt::format(
            "{}: repair or remove it, or go on without such images by --on-bad-image skip",
            error.what()));
      }
      skipped.push_back({image, error.what()});
      if (options_.on_bad_image == BadImagePolicy::Omit) return std::nullopt;
      if (tries == replacements_max || tries + 1 == dataset_.size()) {
        throw DataError(fmt::format("{} images in a row cannot be read; the last one: {}",
                                    tries + 1, error.what()));
      }
      image = (image + 1) % dataset_.size();
    }
  }
}

// `key_index`: the sample that random draws belong to, so that two samples which got the same
// image do not look the same.
void SampleMaker::write(std::int64_t image, std::int64_t key_index, void* out,
                        const TakeJpeg& take) {
  const ImageSize size = reader_->open(image);
  const SamplePlan plan =
      plan_sample(size, options_.transform, {options_.seed, options_.epoch, key_index});
  if (take) {
    const std::span<const std::uint8_t> file = reader_->plain_jpeg();
    if (!file.empty() && take(file, size, plan)) return;
  }
  const DecodedImage decoded = reader_->decode({.top = plan.box_top,
                                                .left = plan.box_left,
                                                .height = plan.box.height,
                                                .width = plan.box.width,
                                                .reduce_max = reduce_max(plan)});
  ResampleBox box;
  const ImageView part = box_of(decoded, plan, box);
  const std::int64_t side = options_.transform.side;
  const ImageView resized =
      resampler_.resize(part, box, plan.resized, {plan.window_top, plan.window_left, side, side});
  const SamplePlacement placement{plan.shift_down, plan.shift_right, plan.flip};
  if (options_.bytes) {
    write_bytes(resized, placement, options_.channels_last, static_cast<std::uint8_t*>(out));
  } else {
    write_normalized(resized, placement, table_, options_.channels_last, static_cast<float*>(out));
  }
}

}  // namespace ddprun::trainer
