// By streams, since such files have no size.
#include "rendezvous/host/kernel_files.h"

#include <charconv>
#include <fstream>
#include <system_error>

namespace ddprun::rendezvous {
namespace {

std::optional<std::uint64_t> number_in(const std::string& text) {
  std::uint64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop == text.data()) return std::nullopt;
  return number;
}

}  // namespace

std::string first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<std::uint64_t> number_of_file(const std::string& path) {
  return number_in(first_line_of(path));
}

std::optional<std::uint64_t> named_number(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name, 0) != 0 || line.size() <= name.size()) continue;
    const std::size_t digit = line.find_first_of("0123456789", name.size());
    if (digit != line.npos) return number_in(line.substr(digit));
  }
  return std::nullopt;
}

}  // namespace ddprun::rendezvous
