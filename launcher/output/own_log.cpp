// A sink of spdlog's rather than a log of ours: all rooms, and rendezvous/ below them, write to its
// default logger, and need not know whose console it ends on.
#include "launcher/output/own_log.h"

#include <spdlog/details/null_mutex.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <string>

namespace ddprun::launcher {
namespace {

class ForwarderSink : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit ForwarderSink(OutputForwarder& output) : output_(output) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::string text(line.data(), line.size());
    while (!text.empty() && text.back() == '\n') text.pop_back();
    const LineKind kind = message.level >= spdlog::level::err    ? LineKind::Error
                          : message.level == spdlog::level::warn ? LineKind::Warning
                                                                 : LineKind::Plain;
    output_.write_line(text, kind);
  }
  void flush_() override {}

 private:
  OutputForwarder& output_;
};

}  // namespace

OwnLog::OwnLog(OutputForwarder& output, bool quiet) : before_(spdlog::default_logger()) {
  auto logger = std::make_shared<spdlog::logger>("ddprun", std::make_shared<ForwarderSink>(output));
  logger->set_pattern("[ddprun] %v");
  logger->set_level(quiet ? spdlog::level::warn : spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

OwnLog::~OwnLog() { spdlog::set_default_logger(before_); }

}  // namespace ddprun::launcher
