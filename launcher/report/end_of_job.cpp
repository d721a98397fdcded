// Who is told what: people the block, programs the report, a scheduler torch's error file.
#include "launcher/report/end_of_job.h"

#include <spdlog/spdlog.h>

#include "launcher/machine/this_machine.h"
#include "launcher/output/whole_file.h"

namespace ddprun::launcher {
namespace {

// `headline`: where the line begins that stands out.
void print_block(const std::string& text, std::size_t headline, OutputForwarder& output) {
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find('\n', begin);
    output.write_line(text.substr(begin, end - begin),
                      begin == headline ? LineKind::Error : LineKind::Plain);
  }
}

void write(const char* what, const std::string& path, const std::string& content) {
  const std::string error = write_whole_file(path, content + '\n');
  if (!error.empty()) spdlog::warn("cannot write the {} {}: {}", what, path, error);
}

}  // namespace

bool has_cause_to_blame(const FailureReport& report) {
  return report.cause && report.cause->kind != rendezvous::FirstCause::Kind::Interrupted &&
         !rendezvous::asks_to_be_queued_again(*report.cause);
}

LastWords last_words(const FailureReport& report, int own_signal) {
  const int status = report.exit_status;
  if (status == 0) return {};
  if (const std::string refusal = usage_text(report); !refusal.empty()) {
    return {report.program + ": " + refusal, /*is_block=*/true, 0, LineKind::Error};
  }
  if (has_cause_to_blame(report)) {
    const std::string text = to_text(report);
    return {text, /*is_block=*/true, text.find('\n') + 1, LineKind::Error};  // Behind the rule.
  }
  const std::string with_status = "; exit status " + std::to_string(status);
  if (report.cause) {
    return {"stopped: " + rendezvous::describe(*report.cause) + with_status, false, 0,
            LineKind::Warning};
  }
  if (own_signal != 0) {
    return {"stopped by " + rendezvous::signal_name(own_signal) + with_status, false, 0,
            LineKind::Warning};
  }
  return {report.why + with_status, false, 0, LineKind::Error};
}

void tell_end_of_job(const FailureReport& report, const LaunchOptions& options, int own_signal,
                     OutputForwarder& output) {
  const int status = report.exit_status;
  if (!options.report_file.empty()) write("report", options.report_file, to_json(report));
  if (status == 0) return;
  const LastWords words = last_words(report, own_signal);
  if (words.is_block) {
    print_block(words.text, words.headline, output);
  } else if (words.kind == LineKind::Error) {
    spdlog::error("{}", words.text);
  } else {
    spdlog::warn("{}", words.text);
  }
  // For a scheduler that reads torch's error files.
  if (const auto path = environment_variable("TORCHELASTIC_ERROR_FILE"); path && !path->empty()) {
    write("error file", *path, to_error_file(report));
  }
}

}  // namespace ddprun::launcher
