// Resizes bytes by bilinear interpolation with antialias, to the same bytes as Pillow's
// Image.resize(size, BILINEAR, box), which torchvision's transforms use: one direction after the
// other, with weights in fixed point and rounding between the two.
// A core: no sockets, threads or clock.
#pragma once

#include <vector>

#include "trainer/data/images/image_view.h"

namespace ddprun::trainer {

// The part of an image that is resized, in its pixels.
struct ResampleBox {
  double top = 0;
  double left = 0;
  double bottom = 0;
  double right = 0;
};

// The part of the resized image that is wanted.
struct ResampleWindow {
  std::int64_t top = 0;
  std::int64_t left = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
};

// The weights' unit is 2^-22. Pillow's choice: 8 bits for the pixel and 2 for overshoot remain.
inline constexpr int resample_weight_bits = 22;

// Of one output pixel, in one direction: the input pixels from `first` on, and their weights.
struct ResampleWeights {
  std::int64_t taps_max = 0;
  std::vector<std::int64_t> first;
  std::vector<std::int64_t> count;
  std::vector<std::int32_t> weights;  // first.size() * taps_max.
};

// All that one resize needs to know of its input's size, for whoever has the pixels elsewhere: what
// Resampler does with them comes of it alone.
struct ResampleTables {
  ResampleWeights columns;  // Of each of the window's columns, and
  ResampleWeights rows;     // of each of its rows: where nothing is to be resized, one weight of 1.
  bool columns_first = false;  // The image gets its height before its width.
};
ResampleTables resample_tables(ImageSize image, const ResampleBox& box, ImageSize size,
                               const ResampleWindow& window);

// One for each thread: keeps its memory from image to image.
class Resampler {
 public:
  // `box` of `image` becomes `size`; of that `window` is returned. No pixel outside the image is
  // used, also where the box ends within one. Views the resampler's memory, until the next call;
  // or the image itself, where nothing is to be resized.
  ImageView resize(const ImageView& image, const ResampleBox& box, ImageSize size,
                   const ResampleWindow& window);

 private:
  ImageView resize_rows(const ImageView& image);
  ImageView resize_columns(const ImageView& image);

  // Of the columns and of the rows that the last window needs.
  ResampleWeights weights_;
  ResampleWeights row_weights_;
  std::vector<std::uint8_t> narrowed_;
  std::vector<std::uint8_t> resized_;
  std::vector<std::int32_t> sums_;
};

}  // namespace ddprun::trainer
