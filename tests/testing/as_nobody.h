// For tests of what a user may not read or write: they may run as the superuser, who may all.
#pragma once

#include <unistd.h>

#include "tests/testing/catch.h"

namespace ddprun::testing {

// While it lives the superuser's process has the rights of nobody, for whom folders of tests are
// closed; another user's stays who it is, and needs a folder that is closed to its owner as well.
class AsNobody {
 public:
  AsNobody() {
    constexpr uid_t nobody = 65'534;
    if (before_ == 0) REQUIRE(::seteuid(nobody) == 0);
  }
  ~AsNobody() {
    if (before_ == 0) CHECK(::seteuid(0) == 0);
  }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;

 private:
  const uid_t before_ = ::geteuid();
};

}  // namespace ddprun::testing
