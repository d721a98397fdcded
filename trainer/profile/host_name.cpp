// See host_name.h.
#include "trainer/profile/host_name.h"

#include <unistd.h>

#include <array>

namespace ddprun::trainer {

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace ddprun::trainer
