// Weights are the resampler's own, computed on the host, since a device's division need not round
// as this one's; they are few beside the file that they come with.
#include "trainer/data/resample_plans.h"

#include "trainer/data/images/resample.h"

namespace ddprun::trainer {
namespace {

static_assert(resample_fraction_bits == resample_weight_bits);

ResampleAxis append(std::vector<std::int32_t>& tables, const ResampleWeights& weights) {
  const auto taps_max = static_cast<std::size_t>(weights.taps_max);
  for (std::size_t i = 0; i < weights.first.size(); ++i) {
    tables.push_back(static_cast<std::int32_t>(weights.first[i]));
    tables.push_back(static_cast<std::int32_t>(weights.count[i]));
    const auto* const begin = weights.weights.data() + i * taps_max;
    tables.insert(tables.end(), begin, begin + taps_max);
  }
  return {.taps_max = static_cast<std::int32_t>(weights.taps_max)};
}

}  // namespace

void ResamplePlans::add(const SamplePlan& plan, const std::uint8_t* pixels, std::int64_t row_bytes,
                        std::int64_t place) {
  const ResampleBox box{.bottom = static_cast<double>(plan.box.height),
                        .right = static_cast<double>(plan.box.width)};
  const ResampleTables weights = resample_tables(plan.box, box, plan.resized,
                                                 {plan.window_top, plan.window_left, side_, side_});
  ResampledImage image{.pixels = pixels + plan.box_top * row_bytes + 3 * plan.box_left,
                       .row_bytes = row_bytes,
                       .place = place,
                       .shift_down = static_cast<std::int32_t>(plan.shift_down),
                       .shift_right = static_cast<std::int32_t>(plan.shift_right),
                       .flip = plan.flip ? 1 : 0,
                       .columns_first = weights.columns_first ? 1 : 0};
  Begins begins{.columns = tables_.size()};
  image.columns = append(tables_, weights.columns);
  begins.rows = tables_.size();
  image.rows = append(tables_, weights.rows);
  images_.push_back(image);
  begins_.push_back(begins);
}

std::vector<ResampledImage> ResamplePlans::images(const std::int32_t* tables) const {
  std::vector<ResampledImage> images = images_;
  for (std::size_t i = 0; i < images.size(); ++i) {
    images[i].columns.table = tables + begins_[i].columns;
    images[i].rows.table = tables + begins_[i].rows;
  }
  return images;
}

}  // namespace ddprun::trainer
