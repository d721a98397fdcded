// Any command line and any PET_* environment gives options that keep their promises, or a usage
// error. The input's lines are words; one that begins with + is a variable, +NAME=VALUE.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include "tests/fuzz/finding.h"
#include "tests/launcher/options/options_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::testing::Words words;
  ddprun::testing::Variables variables = {{"PATH", "/usr/bin:/bin"}};
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const std::size_t equals = line.find('=');
    if (!line.empty() && line[0] == '+' && equals != line.npos) {
      variables[line.substr(1, equals - 1)] = line.substr(equals + 1);
    } else {
      words.push_back(line);
    }
    begin = end + 1;
  }
  try {
    ddprun::testing::accepted_or_refused(words, variables);
  } catch (const std::exception& error) {
    ddprun::fuzz::require(false, error.what());
  }
  return 0;
}
