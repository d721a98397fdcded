// Pillow's arithmetic, bit for bit, for only the pixels that the crop needs.
#include "trainer/data/images/resample.h"

#include <algorithm>
#include <cmath>

// One binary for every x86-64: the loops are compiled twice and the loader picks. The sanitizers
// cannot run before that choice, and clang 14 does not know it; they get the plain version.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define DDPRUN_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define DDPRUN_CLONES
#endif

namespace ddprun::trainer {
namespace {

constexpr std::int32_t half = 1 << (resample_weight_bits - 1);

std::uint8_t to_byte(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> resample_weight_bits, 0, 255));
}

// Pillow's rounding: a half is added and C's conversion drops the rest. std::lround says another
// number where the addition itself rounds (the double below 0.5 becomes 1 here), and the same
// number as Pillow is the only right one.
std::int64_t round_as_pillow(double not_negative) {
  return static_cast<std::int64_t>(not_negative + 0.5);  // NOLINT(bugprone-incorrect-roundings)
}

// Weights of output pixels begin .. end-1 of `out` when the input's pixels in0 .. in1 become all
// of them; the input has `in` pixels. A triangle as wide as an output pixel, and as two input
// pixels at least, normalised to a sum of 1.
void make_weights(std::int64_t in, double in0, double in1, std::int64_t out, std::int64_t begin,
                  std::int64_t end, ResampleWeights& result) {
  const double scale = (in1 - in0) / static_cast<double>(out);
  const double filter_scale = std::max(scale, 1.0);
  const double support = filter_scale;
  result.taps_max = static_cast<std::int64_t>(std::ceil(support)) * 2 + 1;
  const auto pixels = static_cast<std::size_t>(end - begin);
  result.first.resize(pixels);
  result.count.resize(pixels);
  result.weights.resize(pixels * static_cast<std::size_t>(result.taps_max));
  std::vector<double> exact(static_cast<std::size_t>(result.taps_max));
  for (std::int64_t i = begin; i < end; ++i) {
    const double center = in0 + (static_cast<double>(i) + 0.5) * scale;
    const std::int64_t first = round_as_pillow(std::max(0.0, center - support));
    const std::int64_t last = std::min(in, round_as_pillow(center + support));
    double sum = 0;
    for (std::int64_t x = first; x < last; ++x) {
      const double distance =
          std::abs((static_cast<double>(x) - center + 0.5) * (1.0 / filter_scale));
      const double weight = distance < 1 ? 1 - distance : 0;
      exact[static_cast<std::size_t>(x - first)] = weight;
      sum += weight;
    }
    const auto at = static_cast<std::size_t>(i - begin);
    result.first[at] = first;
    result.count[at] = last - first;
    std::int32_t* weights = result.weights.data() + at * static_cast<std::size_t>(result.taps_max);
    for (std::int64_t k = 0; k < last - first; ++k) {
      const double weight = exact[static_cast<std::size_t>(k)] / (sum != 0 ? sum : 1);
      weights[k] = static_cast<std::int32_t>(round_as_pillow(weight * (1 << resample_weight_bits)));
    }
  }
}

// The range of input pixels that the weights refer to; they refer to it from 0 on afterwards.
void take_range(ResampleWeights& weights, std::int64_t& begin, std::int64_t& end) {
  begin = weights.first.front();
  end = weights.first.back() + weights.count.back();
  for (std::int64_t& first : weights.first) first -= begin;
}

// sums += in * weight; clones, because without AVX2 there is no quick multiplication of this width.
DDPRUN_CLONES void add_row(std::int32_t* sums, const std::uint8_t* in, std::int32_t weight,
                           std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sums[i] += in[i] * weight;
}

DDPRUN_CLONES void to_bytes(const std::int32_t* sums, std::uint8_t* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = to_byte(sums[i]);
}

// One output row of three interleaved channels; `step` from input pixel to pixel.
void narrow_row_of_three(const std::uint8_t* in, std::ptrdiff_t step, std::ptrdiff_t channel_step,
                         const ResampleWeights& w, std::uint8_t* out) {
  for (std::size_t x = 0; x < w.first.size(); ++x) {
    const std::int32_t* weights = w.weights.data() + x * static_cast<std::size_t>(w.taps_max);
    const std::uint8_t* from = in + w.first[x] * step;
    std::int32_t a = half, b = half, c = half;
    for (std::int64_t k = 0; k < w.count[x]; ++k, from += step) {
      a += from[0] * weights[k];
      b += from[channel_step] * weights[k];
      c += from[2 * channel_step] * weights[k];
    }
    out[3 * x] = to_byte(a);
    out[3 * x + 1] = to_byte(b);
    out[3 * x + 2] = to_byte(c);
  }
}

void narrow_row(const std::uint8_t* in, std::ptrdiff_t step, std::int64_t channels,
                const ResampleWeights& w, std::uint8_t* out) {
  for (std::size_t x = 0; x < w.first.size(); ++x) {
    const std::int32_t* weights = w.weights.data() + x * static_cast<std::size_t>(w.taps_max);
    const std::uint8_t* from = in + w.first[x] * step;
    std::int32_t sum = half;
    for (std::int64_t k = 0; k < w.count[x]; ++k, from += step) sum += *from * weights[k];
    out[static_cast<std::int64_t>(x) * channels] = to_byte(sum);
  }
}

// As Pillow 13: rounding depends on what comes first. Older ones always begin with the rows.
bool gets_height_first(ImageSize image, ImageSize size) {
  return size.height < image.height && size.width >= image.width;
}

ImageView interleaved(const std::uint8_t* data, std::int64_t channels, ImageSize size) {
  return {data, channels, size.height, size.width, 1, size.width * channels, channels};
}

}  // namespace

ResampleTables resample_tables(ImageSize image, const ResampleBox& box, ImageSize size,
                               const ResampleWindow& window) {
  ResampleTables tables;
  tables.columns_first = gets_height_first(image, size);
  make_weights(image.width, box.left, box.right, size.width, window.left,
               window.left + window.width, tables.columns);
  make_weights(image.height, box.top, box.bottom, size.height, window.top,
               window.top + window.height, tables.rows);
  return tables;
}

// All rows of `image`, at the width that weights_ says.
ImageView Resampler::resize_rows(const ImageView& image) {
  const auto width = static_cast<std::int64_t>(weights_.first.size());
  const std::int64_t row_bytes = width * image.channels;
  narrowed_.resize(static_cast<std::size_t>(image.height * row_bytes));
  for (std::int64_t y = 0; y < image.height; ++y) {
    std::uint8_t* out = narrowed_.data() + y * row_bytes;
    if (image.channels == 3) {
      narrow_row_of_three(image.at(0, y, 0), image.column_step, image.channel_step, weights_, out);
      continue;
    }
    for (std::int64_t c = 0; c < image.channels; ++c) {
      narrow_row(image.at(c, y, 0), image.column_step, image.channels, weights_, out + c);
    }
  }
  return interleaved(narrowed_.data(), image.channels, {image.height, width});
}

// All columns of `image`, at the height that row_weights_ says.
ImageView Resampler::resize_columns(const ImageView& image) {
  const auto height = static_cast<std::int64_t>(row_weights_.first.size());
  const std::int64_t row_bytes = image.width * image.channels;
  const bool packed = image.channel_step == 1 && image.column_step == image.channels;
  resized_.resize(static_cast<std::size_t>(height * row_bytes));
  sums_.resize(static_cast<std::size_t>(row_bytes));
  for (std::int64_t y = 0; y < height; ++y) {
    const auto row = static_cast<std::size_t>(y);
    const std::int32_t* weights =
        row_weights_.weights.data() + row * static_cast<std::size_t>(row_weights_.taps_max);
    std::fill(sums_.begin(), sums_.end(), half);
    for (std::int64_t k = 0; k < row_weights_.count[row]; ++k) {
      const std::uint8_t* in = image.at(0, row_weights_.first[row] + k, 0);
      std::int32_t* sums = sums_.data();
      const std::int32_t weight = weights[k];
      if (packed) {
        add_row(sums, in, weight, row_bytes);
        continue;
      }
      for (std::int64_t x = 0; x < image.width; ++x) {
        for (std::int64_t c = 0; c < image.channels; ++c) {
          *sums++ += in[c * image.channel_step + x * image.column_step] * weight;
        }
      }
    }
    to_bytes(sums_.data(), resized_.data() + y * row_bytes, row_bytes);
  }
  return interleaved(resized_.data(), image.channels, {height, image.width});
}

ImageView Resampler::resize(const ImageView& image, const ResampleBox& box, ImageSize size,
                            const ResampleWindow& window) {
  const auto is_whole = [](double from, double to, std::int64_t in, std::int64_t out) {
    return in == out && from == 0 && to == static_cast<double>(in);
  };
  const bool keep_rows = is_whole(box.top, box.bottom, image.height, size.height);
  const bool keep_columns = is_whole(box.left, box.right, image.width, size.width);
  // Only the pixels that the window needs.
  std::int64_t top = window.top;
  std::int64_t left = window.left;
  std::int64_t bottom = window.top + window.height;
  std::int64_t right = window.left + window.width;
  if (!keep_columns) {
    make_weights(image.width, box.left, box.right, size.width, left, right, weights_);
    take_range(weights_, left, right);
  }
  if (!keep_rows) {
    make_weights(image.height, box.top, box.bottom, size.height, top, bottom, row_weights_);
    take_range(row_weights_, top, bottom);
  }
  ImageView part = image;
  part.data = image.at(0, top, left);
  part.height = bottom - top;
  part.width = right - left;
  const bool columns_first = gets_height_first({image.height, image.width}, size);
  if (columns_first) part = resize_columns(part);
  if (!keep_columns) part = resize_rows(part);
  if (!columns_first && !keep_rows) part = resize_columns(part);
  return part;
}

}  // namespace ddprun::trainer
