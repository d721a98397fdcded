// The launcher's own log lines, in order with the workers' output.
#pragma once

#include <spdlog/details/null_mutex.h>
#include <spdlog/sinks/base_sink.h>

#include <string>

#include "launcher/output/forwarder.h"

namespace ddprun::launcher {

// For one thread, that of the forwarder, which must outlive the sink's last message.
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

}  // namespace ddprun::launcher
