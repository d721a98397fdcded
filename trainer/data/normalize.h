// Bytes of a sample -> the floats that a network sees, in either memory order.
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/data/dataset.h"
#include "trainer/data/images/image_view.h"

namespace ddprun::trainer {

// (byte / 255 - mean) / deviation of every byte, per channel.
class NormalizationTable {
 public:
  explicit NormalizationTable(const Normalization& normalization);
  const float* of_channel(std::int64_t channel) const { return values_.data() + channel * 256; }

 private:
  std::vector<float> values_;
};

// Where the content of a sample lies in it: what is not covered holds zero bytes.
struct SamplePlacement {
  std::int64_t shift_down = 0;
  std::int64_t shift_right = 0;
  bool flip = false;  // After the shift.
};

// Writes channels * height * width floats, or the bytes as they are: channel planes, or pixel by
// pixel (channels_last).
void write_normalized(const ImageView& image, const SamplePlacement& placement,
                      const NormalizationTable& table, bool channels_last, float* out);
void write_bytes(const ImageView& image, const SamplePlacement& placement, bool channels_last,
                 std::uint8_t* out);

}  // namespace ddprun::trainer
