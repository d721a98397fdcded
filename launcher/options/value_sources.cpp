// In the order in which launcher/options/endpoint_options.cpp decides. That an option was given is
// not enough: PET_STANDALONE=0 is given and decides nothing, and so does an empty
// PET_RDZV_ENDPOINT.
#include "launcher/options/value_sources.h"

#include <initializer_list>

namespace ddprun::launcher {
namespace {

constexpr const char* nobody = "default";

std::string source_of_first(const LaunchOptions& options,
                            std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const std::string source = source_of(options, name);
    if (source != nobody && !source.ends_with('=')) return source;
  }
  return nobody;
}

}  // namespace

std::string source_of(const LaunchOptions& options, const std::string& option) {
  const auto found = options.sources.find(option);
  return found == options.sources.end() ? nobody : found->second;
}

std::string source_of_address(const LaunchOptions& options) {
  if (options.standalone) return source_of(options, "standalone");
  return source_of_first(options, {"rdzv-endpoint", "master-addr"});
}

std::string source_of_port(const LaunchOptions& options) {
  if (options.standalone) return source_of(options, "standalone");
  const std::string endpoint = source_of(options, "rdzv-endpoint");
  if (endpoint.ends_with(":" + std::to_string(options.endpoint_port))) return endpoint;
  return source_of(options, "master-port");
}

std::string source_of_run_id(const LaunchOptions& options) {
  const std::string id = source_of_first(options, {"rdzv-id"});
  return id == nobody && options.standalone ? source_of(options, "standalone") : id;
}

}  // namespace ddprun::launcher
