// The name of this machine, for names of files and titles.
#pragma once

#include <string>

namespace ddprun::trainer {

std::string host_name();

}  // namespace ddprun::trainer
