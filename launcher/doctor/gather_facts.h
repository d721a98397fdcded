// Asks this machine for its facts.
#pragma once

#include <string>
#include <vector>

#include "launcher/doctor/machine_facts.h"

namespace ddprun::launcher {

// `names`: to resolve besides its own. `nonce`: what the user's secret is proved over. Takes as
// long as the resolver, and at most some seconds.
MachineFacts gather_facts(const std::vector<std::string>& names, const std::string& nonce);

}  // namespace ddprun::launcher
