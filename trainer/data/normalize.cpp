// A table of 256 floats per channel in place of arithmetic per pixel: each sample's inner loop.
#include "trainer/data/normalize.h"

#include <algorithm>
#include <array>

namespace ddprun::trainer {
namespace {

// Steps known at compile time make this a loop without multiplications; 0: as the argument says.
template <int from_step_known, int to_step_known, typename Value>
void look_up(const Value* table, const std::uint8_t* from, std::ptrdiff_t from_step, Value* to,
             std::ptrdiff_t to_step, std::int64_t count) {
  const std::ptrdiff_t a = from_step_known != 0 ? from_step_known : from_step;
  const std::ptrdiff_t b = to_step_known != 0 ? to_step_known : to_step;
  for (std::int64_t i = 0; i < count; ++i) to[i * b] = table[from[i * a]];
}

template <typename Value>
void look_up_row(const Value* table, const std::uint8_t* from, std::ptrdiff_t from_step, Value* to,
                 std::ptrdiff_t to_step, std::int64_t count) {
  if (from_step == 1 && to_step == 1) return look_up<1, 1>(table, from, 1, to, 1, count);
  if (from_step == 3 && to_step == 1) return look_up<3, 1>(table, from, 3, to, 1, count);
  if (from_step == 1 && to_step == 3) return look_up<1, 3>(table, from, 1, to, 3, count);
  if (from_step == 3 && to_step == 3) return look_up<3, 3>(table, from, 3, to, 3, count);
  look_up<0, 0>(table, from, from_step, to, to_step, count);
}

// `values_of`: a channel's 256 values.
template <typename Value, typename ValuesOf>
void write_values(const ImageView& image, const SamplePlacement& placement, bool channels_last,
                  ValuesOf values_of, Value* out) {
  const std::int64_t height = image.height;
  const std::int64_t width = image.width;
  const std::ptrdiff_t to_step = channels_last ? image.channels : 1;
  // The first and last column of a row, before it is mirrored, that has content.
  const std::int64_t begin = std::clamp<std::int64_t>(placement.shift_right, 0, width);
  const std::int64_t end = std::clamp<std::int64_t>(width + placement.shift_right, begin, width);
  for (std::int64_t channel = 0; channel < image.channels; ++channel) {
    const Value* values = values_of(channel);
    Value* plane = out + (channels_last ? channel : channel * height * width);
    for (std::int64_t y = 0; y < height; ++y) {
      Value* row = plane + y * width * to_step;
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

// A byte for each byte.
std::array<std::uint8_t, 256> identity() {
  std::array<std::uint8_t, 256> values{};
  for (std::size_t byte = 0; byte < values.size(); ++byte) {
    values[byte] = static_cast<std::uint8_t>(byte);
  }
  return values;
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
  write_values(
      image, placement, channels_last,
      [&](std::int64_t channel) { return table.of_channel(channel); }, out);
}

void write_bytes(const ImageView& image, const SamplePlacement& placement, bool channels_last,
                 std::uint8_t* out) {
  static const std::array<std::uint8_t, 256> values = identity();
  write_values(
      image, placement, channels_last, [](std::int64_t) { return values.data(); }, out);
}

}  // namespace ddprun::trainer
