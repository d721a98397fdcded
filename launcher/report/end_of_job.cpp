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

void tell_end_of_job(const FailureReport& report, const LaunchOptions& options, int own_signal,
                     OutputForwarder& output) {
  const int status = report.exit_status;
  if (!options.report_file.empty()) write("report", options.report_file, to_json(report));
  if (status == 0) return;
  if (const std::string refusal = usage_text(report); !refusal.empty()) {
    print_block(report.program + ": " + refusal, 0, output);
  } else if (has_cause_to_blame(report)) {
    const std::string text = to_text(report);
    print_block(text, text.find('\n') + 1, output);  // Behind the rule.
  } else if (report.cause) {
    spdlog::warn("stopped: {}; exit status {}", rendezvous::describe(*report.cause), status);
  } else if (own_signal != 0) {
    spdlog::warn("stopped by {}; exit status {}", rendezvous::signal_name(own_signal), status);
  } else {
    spdlog::error("{}; exit status {}", report.why, status);
  }
  // For a scheduler that reads torch's error files.
  if (const auto path = environment_variable("TORCHELASTIC_ERROR_FILE"); path && !path->empty()) {
    write("error file", *path, to_error_file(report));
  }
}

}  // namespace ddprun::launcher
