// Any bytes must give pixels of the announced size or a reason, and a part of an image exactly
// where the whole can be had: whether a PNG is sound does not depend on the part.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/image_input.h"
#include "trainer/data/images/png_image.h"

using namespace ddprun::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static ddprun::trainer::PngDecoder decoder;  // As a thread's: a file must not harm the next.
  const std::span<const std::uint8_t> bytes(data, size);
  const auto image = try_open(decoder, bytes);
  if (!image) return 0;
  const std::int64_t middle = image->height / 2;
  const auto upper = middle == 0 ? std::optional<std::int64_t>(0)
                                 : sum_of_region(decoder, bytes, {0, 0, middle, image->width, 1});
  const auto lower =
      sum_of_region(decoder, bytes, {middle, 0, image->height - middle, image->width, 1});
  const auto all = sum_of_region(decoder, bytes, {0, 0, image->height, image->width, 1});
  require(all ? upper && lower && *all == *upper + *lower : !lower && (middle == 0 || !upper),
          "the halves are not the whole");
  return 0;
}
