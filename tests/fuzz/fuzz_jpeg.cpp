// Any bytes must give pixels of the announced size or a reason, in full size, reduced, and for a
// part of the image.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/image_input.h"
#include "trainer/data/images/jpeg_image.h"

using namespace ddprun::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static ddprun::trainer::JpegDecoder decoder;  // As a thread's: a file must not harm the next.
  const std::span<const std::uint8_t> bytes(data, size);
  const auto image = try_open(decoder, bytes);
  if (!image) return 0;
  const int reduce = 1 << (size % 4);
  sum_of_region(decoder, bytes, {0, 0, image->height, image->width, 1});
  sum_of_region(decoder, bytes, {0, 0, image->height, image->width, reduce});
  const std::int64_t top = image->height / 3;
  const std::int64_t left = image->width / 3;
  sum_of_region(decoder, bytes,
                {top, left, std::max<std::int64_t>(1, image->height / 2 - top),
                 std::max<std::int64_t>(1, image->width / 2 - left), reduce});
  return 0;
}
