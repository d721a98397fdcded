// What a worker wrote, made fit to be looked at: a report must not clear the screen, move the
// cursor or ring, because a worker's last words did. A core: no sockets, threads or clock.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::launcher {

// Control characters as `cat -v` shows them: ^@ for NUL, ^[ for escape. Tabs and ends of lines
// stay; colors (ESC [ ... m) are taken out, since what they meant is not in their bytes.
std::string visible_text(std::string_view text);

}  // namespace ddprun::launcher
