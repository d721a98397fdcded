// Sizes and lists of texts, apart from values.cpp, since only the output options have them.
#include <algorithm>
#include <cctype>
#include <charconv>

#include "launcher/options/values.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t bytes_most = std::size_t{1} << 50;

// "" or "b" -> 0, "k", "kb" or "kib" -> 10, ...; nothing for what is no unit.
std::optional<int> shift_of(std::string unit) {
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  if (unit.empty() || unit == "b") return 0;
  const std::size_t power = std::string("kmgt").find(unit[0]);
  const std::string rest = unit.substr(1);
  if (power == std::string::npos || !(rest.empty() || rest == "b" || rest == "ib")) return {};
  return 10 * static_cast<int>(power + 1);
}

}  // namespace

std::size_t parse_bytes(const GivenOption& given, std::size_t least) {
  std::size_t number = 0;
  const char* begin = given.value.data();
  const char* end = begin + given.value.size();
  const auto [stop, error] = std::from_chars(begin, end, number);
  const auto shift = shift_of(std::string(stop, end));
  if (error != std::errc() || !shift || number > (bytes_most >> *shift) ||
      (number << *shift) < least) {
    throw usage_error(given.source + ": expected a size of at least " + std::to_string(least) +
                      " bytes, for example 64M or 1G");
  }
  return number << *shift;
}

std::vector<std::string> parse_texts(const GivenOption& given) {
  std::vector<std::string> texts;
  if (given.value.empty()) return texts;
  texts.emplace_back();
  for (std::size_t at = 0; at < given.value.size(); ++at) {
    const bool comma = given.value[at] == ',';
    const bool literal = comma && at + 1 < given.value.size() && given.value[at + 1] == ',';
    if (comma && !literal) {
      texts.emplace_back();
      continue;
    }
    texts.back() += given.value[at];
    at += literal ? 1 : 0;
  }
  return texts;
}

}  // namespace ddprun::launcher
