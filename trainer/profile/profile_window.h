// Which steps --profile traces. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ddprun::trainer {

// Steps are counted from the start of the process, so that a resumed run can be traced too: the
// trace begins when `first` steps are done and ends when `last` are.
struct ProfileWindow {
  std::int64_t first = 10;
  std::int64_t last = 20;
};

// "10:20"; nothing for any other text, and for a window without a step.
std::optional<ProfileWindow> parse_profile_window(std::string_view text);

}  // namespace ddprun::trainer
