// How the readers of platforms read variables.
#pragma once

#include <optional>
#include <string>

#include "launcher/options/arguments.h"
#include "rendezvous/parse_number.h"

namespace ddprun::launcher {

inline std::optional<long long> platform_number(const std::string& text) {
  const auto number = rendezvous::parse_number<long long>(text);
  return number && *number >= 0 ? number : std::nullopt;
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
