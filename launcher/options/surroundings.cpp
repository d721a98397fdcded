// The part of platform.h that asks the system.
#include "launcher/options/surroundings.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "rendezvous/host/host_name.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t host_list_bytes_max =
    4 << 20;  // Of a list of hosts, for which a variable is too small.

// A pipe in the place of a file would hold us up.
std::string content_of_list(const std::string& path) {
  std::error_code unreadable;
  if (path.empty() || !std::filesystem::is_regular_file(path, unreadable)) return "";
  std::ifstream file(path, std::ios::binary);
  std::string text(host_list_bytes_max, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

}  // namespace

Surroundings surroundings(const EnvironmentLookup& environment) {
  return {environment, rendezvous::own_host_name(), content_of_list};
}

}  // namespace ddprun::launcher
