// CRC-32C (Castagnoli), as TFRecord files want it. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <string_view>

namespace ddprun::trainer {

std::uint32_t crc32c(std::string_view bytes);

}  // namespace ddprun::trainer
