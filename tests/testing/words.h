// Command lines, written as a person would.
#pragma once

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace ddprun::testing {

// What stands between blanks; quotes mean nothing.
inline std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

}  // namespace ddprun::testing
