// How the readers of platforms read variables.
#pragma once

#include <charconv>
#include <optional>
#include <string>

#include "launcher/options/arguments.h"

namespace ddprun::launcher {

inline std::optional<long long> platform_number(const std::string& text) {
  long long number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && stop == text.data() + text.size();
  if (!whole || number < 0) return std::nullopt;
  return number;
}

// Variables that are empty count as not set: PyTorchJob sets some of its to "".
class Variables {
 public:
  explicit Variables(const EnvironmentLookup& environment) : environment_(environment) {}

  std::string text(const std::string& name) const {
    return name.empty() ? "" : environment_(name).value_or("");
  }
  bool has(const std::string& name) const { return !text(name).empty(); }
  std::optional<long long> number(const std::string& name) const {
    return platform_number(text(name));
  }
  // "NAME=VALUE"
  std::string shown(const std::string& name) const { return name + "=" + text(name); }
  GivenOption given(const std::string& name) const { return {text(name), shown(name)}; }

 private:
  const EnvironmentLookup& environment_;
};

}  // namespace ddprun::launcher
