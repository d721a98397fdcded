// Text of unknown origin (a worker's last output, a host's name) made fit for a JSON message: valid
// UTF-8, and not too long.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun::rendezvous {

enum class Keep { Head, Tail };  // Which part of a text that is too long.

// At most `bytes_max` bytes of `text`; each byte that is not part of a UTF-8 sequence becomes '?'.
std::string clean_text(std::string_view text, std::size_t bytes_max, Keep keep = Keep::Head);

}  // namespace ddprun::rendezvous
