// Each language's last words by their fixed form; from the end, as the last one is what killed it.
#include "launcher/report/stderr_message.h"

#include <csignal>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace ddprun::launcher {
namespace {

constexpr std::size_t message_bytes_max = 2'000;
constexpr std::size_t what_lines_max = 30;
constexpr std::string_view header = "Traceback (most recent call last):";
constexpr std::string_view original_header = "Original Traceback (most recent call last):";

using Lines = std::vector<std::string_view>;

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

Lines split(std::string_view text) {
  Lines lines;
  while (!text.empty()) {
    const std::size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    // Torch ends what it says of a crashed data loader with one.
    while (!line.empty() && line.front() == '\0') line.remove_prefix(1);
    lines.push_back(line);
    if (newline == text.npos) break;
    text.remove_prefix(newline + 1);
  }
  return lines;
}

std::string joined(const Lines& lines, std::size_t begin, std::size_t end) {
  std::string text;
  for (std::size_t i = begin; i < end; ++i) {
    if (!text.empty()) text += '\n';
    text += lines[i];
  }
  return text;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t") == line.npos; }
bool is_indented(std::string_view line) {
  return !line.empty() && (line[0] == ' ' || line[0] == '\t');
}

// "ValueError: no", "torch.distributed.DistBackendError: ...", "KeyboardInterrupt".
bool is_exception_line(std::string_view line) {
  std::size_t end = 0;
  const auto is_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '<' || c == '>';  // "__main__.main.<locals>.Error"
  };
  while (end < line.size() && is_name(line[end])) ++end;
  if (end == 0 || (line[0] >= '0' && line[0] <= '9') || line[0] == '.') return false;
  return end == line.size() || starts_with(line.substr(end), ": ") || line.substr(end) == ":";
}

// What torch and some launchers put before each line: "[rank0]: ". Anything else before the header
// is not a traceback of the process itself.
std::optional<std::string_view> prefix_of_header(std::string_view line) {
  if (line.size() < header.size() || line.substr(line.size() - header.size()) != header) return {};
  const std::string_view prefix = line.substr(0, line.size() - header.size());
  if (prefix.empty() || (prefix[0] == '[' && prefix.find(']') != prefix.npos)) return prefix;
  return {};
}

bool links_tracebacks(std::string_view line) {
  return line == "During handling of the above exception, another exception occurred:" ||
         line == "The above exception was the direct cause of the following exception:";
}

struct Traceback {
  std::size_t begin = 0;      // Its header.
  std::size_t exception = 0;  // The line with the exception's name.
  std::size_t text_end = 0;   // After what the exception says.
  std::size_t end = 0;        // After its last line.
};

// In place of a line that lacks the prefix of the traceback's others.
constexpr std::string_view no_part = "no part of it";

// The traceback whose header is lines[begin], if it is complete. All lines without prefix. What an
// exception says may have lines of any form, as of Gloo's and NCCL's errors, whose last is the
// cause: a prefix tells which they are, without one indented lines alone are taken for them.
std::optional<Traceback> read_traceback(const Lines& lines, std::size_t begin, bool prefixed) {
  std::size_t at = begin + 1;
  // Python 3.11 has a blank line for marks below a function's first line, where signals strike.
  const auto is_frame = [&](std::size_t i) { return i < lines.size() && is_indented(lines[i]); };
  while (is_frame(at) || (at < lines.size() && is_blank(lines[at]) && is_frame(at + 1))) ++at;
  if (at == lines.size() || !is_exception_line(lines[at])) return {};
  Traceback found{begin, at, at + 1, at + 1};
  for (++at; at < lines.size() && at - found.exception < what_lines_max; ++at) {
    if (starts_with(lines[at], original_header)) {  // Of a data loader's worker process.
      if (const auto inner = read_traceback(lines, at, prefixed)) found.end = inner->end;
      return found;
    }
    const bool belongs =
        prefixed ? lines[at] != no_part && lines[at] != header && !links_tracebacks(lines[at])
                 : is_indented(lines[at]) && !is_blank(lines[at]);
    if (!belongs) break;
    if (!is_blank(lines[at])) found.text_end = found.end = at + 1;
  }
  return found;
}

// Where the chain begins whose last traceback begins at `begin`.
std::size_t chain_begin(const Lines& lines, std::size_t begin) {
  for (;;) {
    std::size_t link = begin;
    while (link > 0 && is_blank(lines[link - 1])) --link;
    if (link == 0 || !links_tracebacks(lines[link - 1])) return begin;
    std::size_t earlier = link - 1;
    while (earlier > 0 && lines[earlier - 1] != header) --earlier;
    if (earlier == 0) return begin;  // It has scrolled out of what is kept.
    begin = earlier - 1;
  }
}

std::string without_prefix(std::string_view line, std::string_view prefix) {
  if (starts_with(line, prefix)) return std::string(line.substr(prefix.size()));
  if (line.empty()) return "";  // Torch puts none before these.
  while (!prefix.empty() && prefix.back() == ' ') prefix.remove_suffix(1);
  return std::string(line == prefix ? "" : no_part);  // Ends a traceback.
}

struct FoundTraceback {
  std::string text;
  std::size_t end = 0;  // The line behind its last one.
  std::string prefix;   // As torch's "[rank0]: ".
};

// The last complete one.
std::optional<FoundTraceback> last_traceback(const Lines& lines) {
  for (std::size_t at = lines.size(); at-- > 0;) {
    const auto prefix = prefix_of_header(lines[at]);
    if (!prefix) continue;
    std::vector<std::string> texts;
    for (const std::string_view line : lines) texts.push_back(without_prefix(line, *prefix));
    const Lines own(texts.begin(), texts.end());
    const auto found = read_traceback(own, at, !prefix->empty());
    if (!found) continue;
    // The exception goes first and is not said again, unless another traceback follows it.
    const std::size_t end = found->text_end < found->end ? found->end : found->exception;
    return FoundTraceback{.text = joined(own, found->exception, found->text_end) + '\n' +
                                  joined(own, chain_begin(own, at), end),
                          .end = found->end,
                          .prefix = std::string(*prefix)};
  }
  return {};
}

std::string python_traceback(const Lines& lines) {
  const auto found = last_traceback(lines);
  return found ? found->text : "";
}

constexpr std::string_view no_exception = "terminate called without an active exception";

// As a message of glog's or Abseil's begins: "F1201 00:52:02.818472   10444 FILE:80] ".
bool is_glog_line(std::string_view line, std::string_view levels) {
  constexpr std::string_view form = "#### ##:##:##.######";
  if (line.size() < 1 + form.size() || levels.find(line[0]) == levels.npos) return false;
  for (std::size_t i = 0; i < form.size(); ++i) {
    const char c = line[i + 1];
    if (form[i] == '#' ? c < '0' || c > '9' : c != form[i]) return false;
  }
  return line.find("] ") != line.npos;
}

// Behind a traceback that it has shortened. These lines, and blank ones, are no word of a
// program's.
bool is_no_word(std::string_view line) {
  return is_blank(line) || line == "--------------------" ||
         starts_with(line, "For simplicity, JAX has removed its internal frames");
}

// Threads of torch's may not bear that the interpreter ends, and JAX's leader gives up whoever does
// not come to its end: both abort a program that an exception has ended already. It is the
// exception that it failed of. Torch puts the rank before those that nobody caught alone; one
// without it may have been survived, if the program wrote anything after it.
std::string exception_before_terminate(const Lines& lines) {
  for (std::size_t at = lines.size(); at-- > 0;) {
    if (lines[at].find(no_exception) == lines[at].npos && !is_glog_line(lines[at], "F")) continue;
    const Lines before(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(at));
    const auto found = last_traceback(before);
    if (!found) return "";
    std::size_t behind = found->end;
    while (behind < at && is_no_word(lines[behind])) ++behind;
    // What JAX tells of its leader's errors has several lines.
    const bool is_last = behind == at || is_glog_line(lines[behind], "EF");
    return starts_with(found->prefix, "[rank") || is_last ? found->text : "";
  }
  return "";
}

// "  File "x.py", line 1 / text / ^ / SyntaxError: ..." of the program itself has no header.
std::string syntax_error(const Lines& lines) {
  for (std::size_t at = lines.size(); at-- > 0;) {
    const std::string_view line = lines[at];
    if (!starts_with(line, "SyntaxError: ") && !starts_with(line, "IndentationError: ") &&
        !starts_with(line, "TabError: ")) {
      continue;
    }
    std::size_t begin = at;
    while (begin > 0 && at - begin < 3 && is_indented(lines[begin - 1])) --begin;
    if (!starts_with(lines[begin], "  File \"")) continue;
    return std::string(line) + '\n' + joined(lines, begin, at);
  }
  return "";
}

std::size_t paragraph_end(const Lines& lines, std::size_t begin) {
  std::size_t end = begin;
  while (end < lines.size() && end - begin < what_lines_max && !is_blank(lines[end])) ++end;
  return end;
}

// libstdc++: "terminate called after throwing an instance of 'T'", then "  what():  text".
std::string uncaught_exception(const Lines& lines) {
  constexpr std::string_view thrown = "terminate called after throwing an instance of '";
  constexpr std::string_view what = "  what():  ";
  constexpr std::string_view libcxx = "terminating due to uncaught exception of type ";
  constexpr std::string_view older_libcxx = "terminating with uncaught exception of type ";
  for (std::size_t at = lines.size(); at-- > 0;) {
    const std::string_view line = lines[at];
    if (const auto place = line.find(thrown); place != line.npos) {
      std::string_view type = line.substr(place + thrown.size());
      type = type.substr(0, type.rfind('\''));
      if (at + 1 == lines.size() || !starts_with(lines[at + 1], what)) return std::string(type);
      std::string text = std::string(type) + ": ";
      text += lines[at + 1].substr(what.size());
      const std::string more = joined(lines, at + 2, paragraph_end(lines, at + 2));
      return more.empty() ? text : text + '\n' + more;
    }
    for (const std::string_view words : {libcxx, older_libcxx}) {
      if (const auto place = line.find(words); place != line.npos) {
        return std::string(line.substr(place + words.size()));
      }
    }
    if (line.find(no_exception) != line.npos) {
      return "std::terminate was called without an exception (a std::thread that was not joined?)";
    }
  }
  return "";
}

// What a failed check of glog's or Abseil's says, up to its stack.
std::string glog_fatal(const Lines& lines) {
  for (std::size_t at = lines.size(); at-- > 0;) {
    if (!is_glog_line(lines[at], "F")) continue;
    std::size_t end = paragraph_end(lines, at);
    for (std::size_t i = at + 1; i < end; ++i) {
      if (starts_with(lines[i], "*** Check failure stack trace: ***")) end = i;
    }
    return joined(lines, at, end);
  }
  return "";
}

// One line that the C library or an assert writes before abort().
std::string words_before_abort(const Lines& lines) {
  for (std::size_t at = lines.size(); at-- > 0;) {
    const std::string_view line = lines[at];
    const bool is_assert =
        line.find(": Assertion `") != line.npos && line.substr(line.size() - 8) == " failed.";
    if (is_assert || starts_with(line, "*** stack smashing detected ***") ||
        starts_with(line, "*** buffer overflow detected ***") || starts_with(line, "free(): ") ||
        starts_with(line, "malloc(): ") || starts_with(line, "double free or corruption") ||
        starts_with(line, "munmap_chunk(): ") || starts_with(line, "corrupted size vs.") ||
        starts_with(line, "realloc(): ")) {
      return std::string(line);
    }
  }
  return "";
}

// Python's faulthandler, and Py_FatalError.
std::string python_fatal_error(const Lines& lines) {
  for (std::size_t at = lines.size(); at-- > 0;) {
    if (!starts_with(lines[at], "Fatal Python error: ")) continue;
    std::string text(lines[at]);
    for (std::size_t i = at + 1; i < lines.size(); ++i) {  // The thread that crashed.
      if (lines[i].find("(most recent call first)") == lines[i].npos) continue;
      if (!starts_with(lines[i], "Current thread ")) continue;
      return text + '\n' + joined(lines, i, paragraph_end(lines, i));
    }
    return text;
  }
  return "";
}

std::string rust_panic(const Lines& lines) {
  for (std::size_t at = lines.size(); at-- > 0;) {
    if (!starts_with(lines[at], "thread '") || lines[at].find("' panicked at ") == lines[at].npos) {
      continue;
    }
    std::size_t end = at + 1;
    while (end < lines.size() && !starts_with(lines[end], "note: ") &&
           !starts_with(lines[end], "stack backtrace:") && end - at < what_lines_max) {
      ++end;
    }
    return joined(lines, at, end);
  }
  return "";
}

std::string words_of_signal(const Lines& lines, int signal) {
  std::string message = signal == SIGABRT ? exception_before_terminate(lines) : "";
  if (message.empty()) message = python_fatal_error(lines);
  if (message.empty() && signal == SIGABRT) message = uncaught_exception(lines);
  if (message.empty() && signal == SIGABRT) message = glog_fatal(lines);
  if (message.empty() && signal == SIGABRT) message = words_before_abort(lines);
  return message;
}

}  // namespace

std::string without_middle(std::string_view text, std::size_t bytes_max) {
  const std::string gap = '\n' + std::string(left_out) + '\n';
  if (text.size() <= bytes_max) return std::string(text);
  const std::size_t kept = bytes_max > gap.size() ? bytes_max - gap.size() : 0;
  std::string_view head = text.substr(0, kept / 3);
  std::string_view tail = text.substr(text.size() - (kept - head.size()));
  if (const auto newline = head.rfind('\n'); newline != head.npos) head = head.substr(0, newline);
  if (const auto newline = tail.find('\n'); newline != tail.npos) tail.remove_prefix(newline + 1);
  return std::string(head) + gap + std::string(tail);
}

LastException last_exception_of(int rank, std::string_view tail) {
  const Lines lines = split(tail);
  const auto found = last_traceback(lines);
  if (!found) return {};
  const bool uncaught = found->prefix == "[rank" + std::to_string(rank) + "]: ";
  std::size_t behind = found->end;
  while (behind < lines.size() && is_no_word(lines[behind])) ++behind;
  if (!uncaught && (!found->prefix.empty() || behind < lines.size())) return {};
  return {without_middle(found->text, message_bytes_max), uncaught};
}

std::string uncaught_exception_of(int rank, std::string_view tail) {
  LastException last = last_exception_of(rank, tail);
  return last.uncaught ? std::move(last.message) : "";
}

std::string message_from_stderr(std::string_view tail, int exit_code, int signal) {
  const Lines lines = split(tail);
  // A shell reports the death of the program that it ran as 128 + n.
  if (signal == 0 && exit_code > 128 && exit_code < 128 + SIGRTMIN) signal = exit_code - 128;
  std::string message;
  if (signal != 0) {
    message = words_of_signal(lines, signal);
  } else if (exit_code != 0) {
    message = python_traceback(lines);
    if (message.empty()) message = syntax_error(lines);
    if (message.empty()) message = rust_panic(lines);
  }
  return without_middle(message, message_bytes_max);
}

}  // namespace ddprun::launcher
