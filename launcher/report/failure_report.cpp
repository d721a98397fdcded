// The one block that a person reads at the end of a failed job, and the same facts as JSON.
#include "launcher/report/failure_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "launcher/report/error_file.h"
#include "launcher/report/stack_text.h"
#include "launcher/report/stderr_message.h"
#include "rendezvous/control/last_line.h"
#include "rendezvous/control/visible_text.h"
#include "rendezvous/json/json_text.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using rendezvous::FirstCause;
using rendezvous::signal_name;
using rendezvous::time_text;
using rendezvous::visible_text;

constexpr std::size_t workers_listed_max = 6;
constexpr std::size_t said_bytes_max = 160;  // Of another worker's message: one line.
constexpr std::size_t message_lines_max = 18;
constexpr std::size_t stderr_lines_max = 20;
constexpr std::size_t stderr_lines_min = 6;  // However long the message is.
constexpr std::size_t text_lines_max = 26;   // Of the two together.
constexpr std::size_t columns_max = 80;
constexpr const char* rule = "------------------------------------------------------------";

using ReportLines = std::vector<std::string>;

ReportLines split(std::string_view text) {
  ReportLines lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return lines;
}

std::string ending(int exit_code, int signal, bool core_dumped) {
  if (signal == 0) return fmt::format("exit code {}", exit_code);
  return fmt::format("killed by {} (signal {}){}", signal_name(signal), signal,
                     core_dumped ? ", core dumped" : "");
}

void add_row(std::string& text, const char* label, const std::string& value) {
  text += fmt::format("  {:<11} {}\n", label, value);
}

// A row whose value is broken between words where it would be too wide.
void add_wrapped_row(std::string& text, const char* label, std::string_view value) {
  constexpr std::size_t width = columns_max - 14;
  while (value.size() > width) {
    std::size_t space = value.rfind(' ', width);
    if (space == std::string_view::npos) space = value.find(' ');
    if (space == std::string_view::npos) break;
    add_row(text, label, std::string(value.substr(0, space)));
    value.remove_prefix(space + 1);
    label = "";
  }
  add_row(text, label, std::string(value));
}

void add_indented(std::string& text, const ReportLines& lines) {
  for (const std::string& line : lines) {
    text += line.empty() ? "\n" : fmt::format("    {}\n", visible_text(line));
  }
}

std::string mebibytes(std::int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

// The begin and the end of a message that is too long.
ReportLines shortened(ReportLines lines) {
  if (lines.size() <= message_lines_max) return lines;
  constexpr std::ptrdiff_t head = message_lines_max / 3;
  constexpr std::ptrdiff_t tail = message_lines_max - head - 1;
  ReportLines result(lines.begin(), lines.begin() + head);
  result.push_back(fmt::format("  [... {} lines ...]", lines.size() - head - tail));
  result.insert(result.end(), lines.end() - tail, lines.end());
  return result;
}

// torch puts "[rank0]: " before what Python prints on an uncaught exception.
std::string_view without_rank(std::string_view line) {
  if (line.substr(0, 5) != "[rank") return line;
  const std::size_t end = line.find("]: ");
  return end == line.npos ? line : line.substr(end + 3);
}

// A worker's own words for itself before a message: "rank 1: the loss is nan".
std::string_view without_speaker(std::string_view line, int rank) {
  const std::string speaker = fmt::format("rank {}: ", rank);
  return line.substr(0, speaker.size()) == speaker ? line.substr(speaker.size()) : line;
}

// "train: the loss is nan" without the program that says it; "" when no program does.
std::string_view without_program(std::string_view line) {
  const std::size_t colon = line.find(": ");
  if (colon == line.npos || line.substr(0, colon).find(' ') != line.npos) return "";
  return line.substr(colon + 2);
}

// Whether a line of stderr is one of the message, with or without names before it.
bool says(std::string_view line, const ReportLines& message, int rank) {
  const auto is_one = [&](std::string_view text) {
    return !text.empty() && std::find(message.begin(), message.end(), text) != message.end();
  };
  const std::string_view own = without_rank(line);
  return is_one(own) || is_one(without_speaker(own, rank)) ||
         is_one(without_speaker(without_program(own), rank));
}

// Frames around the function that torch's @record records: its traceback, the message, begins with
// that one's.
void add_outer_frames(std::vector<bool>& said, const ReportLines& lines) {
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (!said[i] || without_rank(lines[i]) != "Traceback (most recent call last):") continue;
    std::size_t inner = i + 1;
    while (inner < lines.size() && !said[inner] && without_rank(lines[inner]).starts_with(' ')) {
      ++inner;
    }
    if (inner == lines.size() || !said[inner]) continue;
    for (std::size_t frame = i + 1; frame < inner; ++frame) said[frame] = true;
  }
}

// The report of a worker that is a launcher itself, whose error file has what it reports.
void add_inner_report(std::vector<bool>& said, const ReportLines& lines,
                      const ReportLines& message) {
  if (message.empty()) return;
  const std::string title = " FAILED: " + message.front();
  for (auto begin = lines.begin(); begin != lines.end(); ++begin) {
    if (*begin != rule || begin + 1 == lines.end() || !(begin + 1)->ends_with(title)) continue;
    const auto end = std::find(begin + 1, lines.end(), rule);
    if (end == lines.end()) return;
    std::fill(said.begin() + (begin - lines.begin()), said.begin() + (end - lines.begin()) + 1,
              true);
    return;
  }
}

// Which lines of stderr are the message's, also of those that it has left out of a long traceback:
// indented ones before its second part.
std::vector<bool> lines_said(const ReportLines& lines, const ReportLines& message, int rank) {
  std::vector<bool> said(lines.size());
  for (std::size_t i = 0; i < lines.size(); ++i) said[i] = says(lines[i], message, rank);
  add_outer_frames(said, lines);
  add_inner_report(said, lines, message);
  const auto gap = std::find(message.begin(), message.end(), left_out);
  if (gap == message.end()) return said;
  const ReportLines second(gap + 1, message.end());
  bool in_message = false;
  for (std::size_t i = lines.size(); i-- > 0;) {
    const bool is_indented = without_rank(lines[i]).starts_with(' ');
    in_message = is_indented && (in_message || says(lines[i], second, rank));
    if (in_message) said[i] = true;
  }
  return said;
}

// The last lines of stderr without what the message holds already.
ReportLines stderr_lines(const FirstCause& cause, const ReportLines& message) {
  const ReportLines all = split(readable_stack(cause.last_stderr));
  const std::vector<bool> is_said = lines_said(all, message, cause.rank);
  ReportLines lines;
  bool said = false;
  for (std::size_t i = 0; i < all.size(); ++i) {
    // Blank lines stand between the tracebacks of a chain.
    const bool known = is_said[i] || (said && without_rank(all[i]).empty());
    if (!known) lines.push_back(all[i]);
    if (known && !said) lines.emplace_back("[the message above]");
    said = known;
  }
  return lines;
}

void add_words(std::string& text, const FirstCause& cause) {
  const bool in_headline =
      cause.kind == FirstCause::Kind::StartFailed || cause.kind == FirstCause::Kind::NodeLost;
  // The rank stands above.
  const std::string_view said = without_speaker(cause.message, cause.rank);
  const ReportLines whole = in_headline ? ReportLines() : split(said);
  const ReportLines message = shortened(whole);
  ReportLines last = stderr_lines(cause, whole);
  const std::size_t room =
      std::clamp(text_lines_max - message.size(), stderr_lines_min, stderr_lines_max);
  if (last.size() > room) {
    last.erase(last.begin(), last.end() - static_cast<std::ptrdiff_t>(room));
  }
  if (last == ReportLines{"[the message above]"}) last.clear();
  if (!message.empty()) text += "  message\n";
  add_indented(text, message);
  if (!last.empty()) text += "  last lines of its stderr\n";
  add_indented(text, last);
}

std::string memory(const FirstCause& cause) {
  if (cause.memory_limit_bytes == 0) return "ran out: the kernel killed it";
  std::string text = fmt::format("ran out: the limit is {}", mebibytes(cause.memory_limit_bytes));
  if (cause.memory_peak_bytes != 0) {
    text += fmt::format(", the peak was {}", mebibytes(cause.memory_peak_bytes));
  }
  return text;
}

std::string headline(const FailureReport& report) {
  if (!report.cause) return report.exit_status == 0 ? "" : report.why;
  return rendezvous::describe(*report.cause);
}

// What ended the job when its cause alone did not: with a restart left, others were waited for in
// vain.
std::string what_came_of_it(const FailureReport& report) {
  if (!report.cause || report.why.starts_with(headline(report))) return "";
  return report.why;
}

// All in one line.
std::string why(const FailureReport& report) {
  const std::string then = what_came_of_it(report);
  return headline(report) + (then.empty() ? "" : "; then: " + then);
}

bool is_the_cause(const WorkerEnd& worker, const FailureReport& report) {
  return report.cause && worker.pid == report.cause->pid && worker.rank == report.cause->rank;
}

const WorkerEnd* end_of_the_cause(const FailureReport& report) {
  for (const WorkerEnd& worker : report.local_workers) {
    if (is_the_cause(worker, report)) return &worker;
  }
  return nullptr;
}

std::string fate(const WorkerEnd& worker) {
  if (worker.exit_code == 0 && worker.signal == 0) return "succeeded";
  const std::string how = ending(worker.exit_code, worker.signal, worker.core_dumped);
  if (worker.stopped_by_us) return fmt::format("stopped ({})", how);
  return fmt::format("failed too{} ({})", worker.before_the_cause ? "" : ", later", how);
}

void add_cause(std::string& text, const FirstCause& cause, const FailureReport& report) {
  const auto row = [&](const char* label, const std::string& value) {
    add_row(text, label, value);
  };
  row("host", cause.host + (cause.host == report.this_host ? "" : " (another node)"));
  if (cause.node_rank >= 0) row("node", std::to_string(cause.node_rank));
  if (cause.rank >= 0) row("rank", fmt::format("{} (local rank {})", cause.rank, cause.local_rank));
  if (cause.pid > 0) row("pid", std::to_string(cause.pid));
  if (!cause.ended_first.empty()) {
    const std::string after = "after " + time_text(std::chrono::milliseconds(cause.ran_ms));
    row("failed", after + (cause.halted ? " it was seen to be halted by a signal"
                                        : ", when it recorded its error"));
    if (const WorkerEnd* end = end_of_the_cause(report)) row("ended", fate(*end));
    add_wrapped_row(text, "ended first", cause.ended_first);
  } else if (cause.kind == FirstCause::Kind::WorkerFailed) {
    row("ended", ending(cause.exit_code, cause.signal, cause.core_dumped));
    row("after", time_text(std::chrono::milliseconds(cause.ran_ms)));
  }
  row("attempt", fmt::format("{} (started {}, --max-restarts {})", cause.attempt, report.attempts,
                             report.max_restarts));
  if (cause.oom_killed) row("memory", memory(cause));
  if (!cause.core.empty()) row("core dump", cause.core);
  const char* label = "its logs";
  for (const std::string& path : split(cause.log_files)) row(std::exchange(label, ""), path);
  add_words(text, cause);
}

// The first line of what a worker said, cut between characters.
std::string first_line(std::string_view message) {
  std::string_view line = message.substr(0, message.find('\n'));
  if (line.size() <= said_bytes_max) return std::string(line);
  std::size_t end = said_bytes_max;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xc0) == 0x80) --end;
  return std::string(line.substr(0, end)) + " ...";
}

// What a worker said of its end: its message, or of one that ended by itself the last line that it
// printed on stderr, as a program does that catches its error and returns 1.
std::string_view last_said(const WorkerEnd& worker) {
  const bool left = !worker.success() && worker.signal == 0 && !worker.stopped_by_us;
  if (!worker.message.empty() || !left) return worker.message;
  return rendezvous::last_line(worker.last_stderr);
}

std::string line_of(const WorkerEnd& worker, const FailureReport& report) {
  std::string line = fmt::format("    rank {} (local rank {}, pid {}): {}", worker.rank,
                                 worker.local_rank, worker.pid, fate(worker));
  const std::string_view said = without_speaker(last_said(worker), worker.rank);
  const bool same =
      report.cause && said == without_speaker(report.cause->message, report.cause->rank);
  if (!said.empty()) line += same ? ": the same message" : ": " + first_line(said);
  if (!worker.note.empty()) line += "; " + worker.note;
  return line + '\n';
}

void add_others(std::string& text, const FailureReport& report) {
  std::vector<const WorkerEnd*> others;
  for (const WorkerEnd& worker : report.local_workers) {
    if (!is_the_cause(worker, report)) others.push_back(&worker);
  }
  if (others.empty()) return;
  // Of many, those with something to say: that 60 others were stopped is one line's worth.
  if (others.size() > workers_listed_max) {
    std::stable_partition(others.begin(), others.end(),
                          [](const WorkerEnd* worker) { return !last_said(*worker).empty(); });
  }
  const std::size_t listed = std::min(others.size(), workers_listed_max);
  text += "  other workers of this node\n";
  for (std::size_t i = 0; i < listed; ++i) text += line_of(*others[i], report);
  if (others.size() > listed) text += fmt::format("    and {} more\n", others.size() - listed);
}

ordered_json cause_json(const FirstCause& cause) {
  static constexpr const char* kinds[] = {"worker_failed", "start_failed", "node_lost",
                                          "interrupted"};
  return {{"kind", kinds[static_cast<int>(cause.kind)]},
          {"host", cause.host},
          {"node_rank", cause.node_rank},
          {"rank", cause.rank},
          {"local_rank", cause.local_rank},
          {"pid", cause.pid},
          {"exit_code", cause.exit_code},
          {"signal", cause.signal},
          {"signal_name", cause.signal == 0 ? "" : signal_name(cause.signal)},
          {"core_dumped", cause.core_dumped},
          {"attempt", cause.attempt},
          {"ran_ms", cause.ran_ms},
          {"ended_first", cause.ended_first},
          {"hung_ms", cause.hung_ms},
          {"message", cause.message},
          {"last_stderr", cause.last_stderr},
          {"oom_killed", cause.oom_killed},
          {"memory_limit_bytes", cause.memory_limit_bytes},
          {"memory_peak_bytes", cause.memory_peak_bytes},
          {"core", cause.core},
          {"log_files", split(cause.log_files)},
          {"usage_error", cause.usage_error},
          {"advice", cause.advice}};
}

}  // namespace

bool tells_all(const FailureReport& report) {
  if (!report.cause || split(report.cause->message).size() > message_lines_max) return false;
  const bool all_listed = report.local_workers.size() <= workers_listed_max;
  const auto is_told = [&](const WorkerEnd& worker) {
    if (is_the_cause(worker, report) || worker.message.empty()) return true;
    if (all_listed && worker.message == first_line(worker.message)) return true;
    return without_speaker(worker.message, worker.rank) ==
           without_speaker(report.cause->message, report.cause->rank);
  };
  return std::all_of(report.local_workers.begin(), report.local_workers.end(), is_told);
}

std::string usage_text(const FailureReport& report) {
  if (!report.cause) return "";
  const FirstCause& cause = *report.cause;
  const bool refuses = cause.kind == FirstCause::Kind::WorkerFailed && cause.signal == 0 &&
                       cause.exit_code == rendezvous::exit_status::usage;
  // By itself the code is any program's.
  if (!refuses || cause.message.empty()) return "";
  const std::string_view said = without_speaker(cause.message, cause.rank);
  const bool printed = cause.last_stderr.find(said.substr(0, said.find('\n'))) != std::string::npos;
  return printed ? "" : visible_text(said);
}

std::string to_text(const FailureReport& report) {
  std::string text = fmt::format("{}\n{} FAILED: {}\n", rule, report.program, headline(report));
  if (const auto then = what_came_of_it(report); !then.empty()) {
    add_wrapped_row(text, "then", then);
  }
  if (report.cause) {
    text += "first cause\n";
    add_cause(text, *report.cause, report);
  }
  add_others(text, report);
  if (!report.log_dir.empty()) add_row(text, "logs", report.log_dir);
  if (report.cause && !report.cause->advice.empty()) {
    add_wrapped_row(text, "advice", report.cause->advice);
  }
  text += fmt::format("  exit status {}\n{}", report.exit_status, rule);
  // All of it: an escape sequence may stand in a path or a program's name, too.
  return visible_text(text);
}

std::string to_json(const FailureReport& report) {
  ordered_json workers = ordered_json::array();
  for (const WorkerEnd& worker : report.local_workers) {
    workers.push_back({{"rank", worker.rank},
                       {"local_rank", worker.local_rank},
                       {"pid", worker.pid},
                       {"exit_code", worker.exit_code},
                       {"signal", worker.signal},
                       {"core_dumped", worker.core_dumped},
                       {"stopped", worker.stopped_by_us},
                       {"ran_ms", worker.ran_ms},
                       {"message", worker.message},
                       {"note", worker.note}});
  }
  ordered_json object = {{"version", 1},
                         {"run_id", report.run_id},
                         {"program", report.program},
                         {"host", report.this_host},
                         {"node_rank", report.node_rank},
                         {"ended_s", report.ended_s},
                         {"exit_status", report.exit_status},
                         {"attempts", report.attempts},
                         {"max_restarts", report.max_restarts},
                         {"why", why(report)},
                         {"workers", std::move(workers)},
                         {"log_dir", report.log_dir}};
  for (const StallNote& stall : report.stalls) {
    object["stalls"].push_back({{"attempt", stall.attempt},
                                {"behind", stall.behind},
                                {"why", stall.why},
                                {"stacks", stall.stacks},
                                {"job_stacks", stall.job_stacks},
                                {"nccl_ras", stall.nccl_ras}});
  }
  if (report.cause) object["first_cause"] = cause_json(*report.cause);
  return rendezvous::json_page(object);
}

json to_json(const FirstCause& cause) { return cause_json(cause); }

std::string to_error_file(const FailureReport& report) {
  if (!report.culprits_error_file.empty() && report.cause) {
    const WorkerEnd* end = end_of_the_cause(report);
    const int signal = end != nullptr ? end->signal : report.cause->signal;
    const int exit_code = end != nullptr ? end->exit_code : report.cause->exit_code;
    // torchrun's code of a signal is negative, Python's way.
    std::string own =
        with_error_code(report.culprits_error_file, signal != 0 ? -signal : exit_code);
    if (!own.empty()) return own;
  }
  ordered_json message = {{"message", why(report)}, {"errorCode", report.exit_status}};
  // torch's reader shows the call stack alone, and fails without the time.
  const bool has_details = report.cause && !report.cause->message.empty();
  message["extraInfo"] = {{"py_callstack", has_details ? report.cause->message : why(report)},
                          {"timestamp", std::to_string(report.ended_s)}};
  return rendezvous::json_page({{"message", std::move(message)}});
}

}  // namespace ddprun::launcher
