// See memory_dataset.h.
#include "trainer/data/memory_dataset.h"

#include <cstring>

namespace ddprun::trainer {

void MemoryDataset::read(std::span<const std::int64_t> indices, std::uint8_t* pixels,
                         std::int64_t* labels) const {
  const std::size_t bytes = static_cast<std::size_t>(contents_.shape.bytes());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::size_t index = static_cast<std::size_t>(indices[i]);
    std::memcpy(pixels + i * bytes, contents_.pixels.data() + index * bytes, bytes);
    labels[i] = contents_.labels[index];
  }
}

}  // namespace ddprun::trainer
