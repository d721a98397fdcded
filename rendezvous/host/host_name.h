// This machine's name, as messages and file names say it.
#pragma once

#include <unistd.h>

#include <array>
#include <climits>
#include <string>

namespace ddprun::rendezvous {

inline std::string own_host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return ::gethostname(name.data(), name.size()) == 0 ? name.data() : "unknown";
}

}  // namespace ddprun::rendezvous
