// How a fuzz target reports a finding: in words, and with abort(), which libFuzzer turns into a
// file with the input.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace ddprun::fuzz {

inline void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "finding: %s\n", what.c_str());
  std::abort();
}

}  // namespace ddprun::fuzz
