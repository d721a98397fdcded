// What others wrote, made fit to be looked at: a log or a report must not clear the screen, move
// the cursor, ring, or look like another line, because a worker's last words or a stranger's host
// name did. A core: no sockets, threads or clock.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::rendezvous {

enum class Lines { Keep, Escape };  // Tabs and ends of lines: they stay, or are shown as ^I and ^J.

// Control characters as `cat -v` shows them: ^@ for NUL, ^[ for escape. Colors (ESC [ ... m) are
// taken out, since what they meant is not in their bytes. What turns the direction of writing, and
// Unicode's own ends of lines, become '?': they make a terminal show another text than the one that
// is there.
std::string visible_text(std::string_view text, Lines lines = Lines::Keep);

}  // namespace ddprun::rendezvous
