// For checks of long texts, whose failure shows where was looked and for what.
#pragma once

#include <string>

#include "tests/testing/catch.h"
#include "tests/testing/text.h"

namespace ddprun::testing {

inline bool check_contains(const std::string& text, const std::string& part) {
  INFO(text);
  INFO("looking for: " << part);
  CHECK(contains(text, part));
  return contains(text, part);
}

}  // namespace ddprun::testing
