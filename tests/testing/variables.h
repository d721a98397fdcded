// An environment that a test makes up.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

namespace ddprun::testing {

using Variables = std::map<std::string, std::string>;

// What is read through an EnvironmentLookup finds these, and nothing else.
inline auto lookup_in(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

}  // namespace ddprun::testing
