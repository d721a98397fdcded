// The launcher's own log lines, in order with the workers' output.
#pragma once

#include <spdlog/logger.h>

#include <memory>

#include "launcher/output/forwarder.h"

namespace ddprun::launcher {

// While it lives, what this process logs goes through the forwarder, which must outlive it. For one
// thread, that of the forwarder.
class OwnLog {
 public:
  // `quiet`: warnings and errors only.
  OwnLog(OutputForwarder& output, bool quiet);
  ~OwnLog();
  OwnLog(const OwnLog&) = delete;
  OwnLog& operator=(const OwnLog&) = delete;

 private:
  std::shared_ptr<spdlog::logger> before_;
};

}  // namespace ddprun::launcher
