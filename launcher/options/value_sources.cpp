// Which of several options has decided is launcher/options/endpoint_options.cpp's to say.
#include "launcher/options/value_sources.h"

namespace ddprun::launcher {

std::string source_of(const LaunchOptions& options, const std::string& option) {
  const auto found = options.sources.find(option);
  return found == options.sources.end() ? "default" : found->second;
}

}  // namespace ddprun::launcher
