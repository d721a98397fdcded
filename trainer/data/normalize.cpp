// A table of 256 floats per channel in place of arithmetic per pixel: each sample's inner loop.
#include "trainer/data/normalize.h"

#include <algorithm>

namespace ddprun::trainer {
namespace {

// Steps known at compile time make this a loop without multiplications; 0: as the argument says.
template <int from_step_known, int to_step_known>
void look_up(const float* table, const std::uint8_t* from, std::ptrdiff_t from_step, float* to,
             std::ptrdiff_t to_step, std::int64_t count) {
  const std::ptrdiff_t a = from_step_known != 0 ? from_step_known : from_step;
  const std::ptrdiff_t b = to_step_known != 0 ? to_step_known : to_step;
  for (std::int64_t i = 0; i < count; ++i) to[i * b] = table[from[i * a]];
}

void look_up_row(const float* table, const std::uint8_t* from, std::ptrdiff_t from_step, float* to,
                 std::ptrdiff_t to_step, std::int64_t count) {
  if (from_step == 1 && to_step == 1) return look_up<1, 1>(table, from, 1, to, 1, count);
  if (from_step == 3 && to_step == 1) return look_up<3, 1>(table, from, 3, to, 1, count);
  if (from_step == 1 && to_step == 3) return look_up<1, 3>(table, from, 1, to, 3, count);
  if (from_step == 3 && to_step == 3) return look_up<3, 3>(table, from, 3, to, 3, count);
  look_up<0, 0>(table, from, from_step, to, to_step, count);
}

}  // namespace

NormalizationTable::NormalizationTable(const Normalization& normalization) {
  for (std::size_t channel = 0; channel < normalization.mean.size(); ++channel) {
    for (int byte = 0; byte < 256; ++byte) {
      values_.push_back((static_cast<float>(byte) / 255.0F - normalization.mean[channel]) /
                        normalization.deviation[channel]);
    }
  }
}

void write_normalized(const ImageView& image, const SamplePlacement& placement,
                      const NormalizationTable& table, bool channels_last, float* out) {
  const std::int64_t height = image.height;
  const std::int64_t width = image.width;
  const std::ptrdiff_t to_step = channels_last ? image.channels : 1;
  // The first and last column of a row, before it is mirrored, that has content.
  const std::int64_t begin = std::clamp<std::int64_t>(placement.shift_right, 0, width);
  const std::int64_t end = std::clamp<std::int64_t>(width + placement.shift_right, begin, width);
  for (std::int64_t channel = 0; channel < image.channels; ++channel) {
    const float* values = table.of_channel(channel);
    float* plane = out + (channels_last ? channel : channel * height * width);
    for (std::int64_t y = 0; y < height; ++y) {
      float* row = plane + y * width * to_step;
      const std::int64_t from_row = y - placement.shift_down;
      const bool empty = from_row < 0 || from_row >= height || begin == end;
      const std::int64_t first = empty ? width : begin;
      const std::int64_t last = empty ? width : end;
      const auto column = [&](std::int64_t x) {
        return row + (placement.flip ? width - 1 - x : x) * to_step;
      };
      // Byte 0 and not 0.0: torchvision pads the image before it normalises.
      for (std::int64_t x = 0; x < first; ++x) *column(x) = values[0];
      for (std::int64_t x = last; x < width; ++x) *column(x) = values[0];
      if (empty) continue;
      look_up_row(values, image.at(channel, from_row, first - placement.shift_right),
                  image.column_step, column(first), placement.flip ? -to_step : to_step,
                  last - first);
    }
  }
}

}  // namespace ddprun::trainer
