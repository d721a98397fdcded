// Files of the kernel that have a line or a number for an answer. What is missing, or makes no
// sense, is nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddprun::rendezvous {

std::string first_line_of(const std::string& path);

// "123" at its beginning.
std::optional<std::uint64_t> number_of_file(const std::string& path);

// The number of its line that begins with `name`.
std::optional<std::uint64_t> named_number(const std::string& path, const std::string& name);

}  // namespace ddprun::rendezvous
