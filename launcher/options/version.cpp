// A file of its own, because it is compiled again after each commit.
#include <string>

#include "build_info.h"
#include "launcher/options/help.h"

namespace ddprun::launcher {

std::string version_text() { return name_and_version() + " (" DDPRUN_BUILD_INFO ")"; }

}  // namespace ddprun::launcher
