// docs/ddprun.1, the man page: all of it, from table.h.
#pragma once

#include <string>

namespace ddprun::launcher {

std::string man_page();

}  // namespace ddprun::launcher
