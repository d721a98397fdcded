// Which addresses are this machine's, and who listens on its ports.
#pragma once

#include <string>
#include <vector>

namespace ddprun::launcher {

// Of an interface, or a loopback one; false for what is no numeric address.
bool is_local_address(const std::string& address);

// Those of all interfaces, numeric.
std::vector<std::string> own_addresses();

// Why a program cannot connect to this machine itself through 127.0.0.1, and what to do; "" = it
// can.
std::string loopback_problem();

// "pid 4127 (python3)" of the process that listens on `port`, or "" when that cannot be known (it
// belongs to another user).
std::string port_holder(int port);

}  // namespace ddprun::launcher
