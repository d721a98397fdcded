// What is logged meanwhile, for tests of warnings; nothing of it reaches the test's own output.
#pragma once

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>
#include <string>

namespace ddprun::testing {

class HeardLog {
 public:
  HeardLog() : usual_(spdlog::default_logger()) {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_, /*force_flush=*/true);
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("heard", std::move(sink)));
  }
  ~HeardLog() { spdlog::set_default_logger(usual_); }
  HeardLog(const HeardLog&) = delete;
  HeardLog& operator=(const HeardLog&) = delete;

  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> usual_;
};

}  // namespace ddprun::testing
