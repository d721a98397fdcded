// The environment as a value: whoever reads variables is given a lookup, so that a test, a plan or
// another host's may stand in the place of this process's own.
#pragma once

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

namespace ddprun::rendezvous {

// Returns a variable's value, or nothing when it is unset.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

// Of this process. Not beside a thread that sets variables.
inline std::optional<std::string> environment_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace ddprun::rendezvous
