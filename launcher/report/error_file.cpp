// The two formats of torch's error files, as torch itself reads them; whatever a worker wrote
// instead is text for people. Sources: torch.distributed.elastic.multiprocessing.errors,
// ProcessFailure and ErrorHandler.
#include "launcher/report/error_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "launcher/report/stack_text.h"
#include "rendezvous/json/json_text.h"
#include "rendezvous/parse_number.h"

namespace ddprun::launcher {
namespace {

using nlohmann::json;

constexpr std::size_t foreign_bytes_max = 2'000;  // Of an error file in no known format.

std::string stripped(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n\v\f";
  const std::size_t begin = text.find_first_not_of(blank);
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(blank) - begin + 1));
}

// 1: `text` has at `at` an escape of a pair's first half, as of \ud83d\ude00; 2: of its second.
int half_of_pair(std::string_view text, std::size_t at) {
  if (text.size() < at + 6 || text[at] != '\\' || text[at + 1] != 'u') return 0;
  if (text[at + 2] != 'd' && text[at + 2] != 'D') return 0;
  const auto is_one_of = [&](std::string_view digits) {
    return digits.find(text[at + 3]) != digits.npos;
  };
  return is_one_of("89abAB") ? 1 : is_one_of("cdefCDEF") ? 2 : 0;
}

// Python writes a byte of a file's name that is no UTF-8 as \udc80 to \udcff, half of a pair, which
// its own reader takes, and ours does not.
std::string with_whole_pairs(std::string_view content) {
  std::string text(content);
  for (std::size_t at = 0; (at = text.find('\\', at)) != text.npos;) {
    const int half = half_of_pair(text, at);
    const bool pair = half == 1 && half_of_pair(text, at + 6) == 2;
    if (half != 0 && !pair) text.replace(at, 6, "\\ufffd");
    at += pair ? 12 : half != 0 ? 6 : 2;  // Behind a \ stands what it escapes, maybe a second one.
  }
  return text;
}

json parsed(std::string_view content) { return rendezvous::json_of(with_whole_pairs(content)); }

// A file that was cut off at the limit ends in the middle, and no more of it is to come.
bool is_too_long(const std::string& content) {
  return content.size() >= error_file_bytes_max && content.starts_with("{\"message\"");
}

const json* member(const json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

const json* nested_extra(const json& file) {
  const json* message = member(file, "message");
  return message == nullptr ? nullptr : member(*message, "extraInfo");
}

// Beside the message as our workers write it, or in a flat file beside everything.
const json* extra(const json& file, const char* name) {
  const json* nested = nested_extra(file);
  return member(nested != nullptr ? *nested : file, name);
}

// The text and, where there is one, the traceback of a "message" of torch's.
std::string torch_message(const json& file) {
  const json* message = member(file, "message");
  if (message == nullptr) return "";
  if (message->is_string()) return stripped(message->get_ref<const std::string&>());
  const json* inner = member(*message, "message");
  std::string text = inner != nullptr && inner->is_string() ? inner->get<std::string>() : "";
  const json* nested = nested_extra(file);
  const json* stack = nested == nullptr ? nullptr : member(*nested, "py_callstack");
  // Our own error files without a stack hold the message twice, for torch's reader shows this
  // alone.
  if (stack != nullptr && stack->is_string() && stack->get_ref<const std::string&>() != text) {
    text += '\n';
    text += readable_stack(stack->get_ref<const std::string&>());
  }
  return stripped(text);
}

// A text or a number, since torch's reader takes both in both places.
std::optional<std::int64_t> time_stamp(const json& file, const char* name) {
  const json* stamp = extra(file, name);
  if (stamp == nullptr) return std::nullopt;
  if (stamp->is_number_integer()) return stamp->get<std::int64_t>();
  if (!stamp->is_string()) return std::nullopt;
  return rendezvous::parse_number<std::int64_t>(stamp->get_ref<const std::string&>());
}

constexpr std::int64_t second_ns = 1'000'000'000;

// A time stamp outside of the attempt is somebody's mistake: seconds of another clock,
// milliseconds.
bool can_be(std::int64_t stamp_s, const ErrorFileTimes& times) {
  return stamp_s >= times.attempt_began / second_ns - 1 && stamp_s <= times.now / second_ns + 1;
}

// Our workers say the nanosecond (worker/error_file.h). torch's time stamp has whole seconds, in
// which two ranks of one node often fail together: within its second the file's own time decides.
void set_recorded_at(ErrorFile& result, const json& file, const ErrorFileTimes& times) {
  result.recorded_at = times.modified;
  if (const auto stamp = time_stamp(file, "timestamp_ns");
      stamp && can_be(*stamp / second_ns, times)) {
    result.recorded_at = *stamp;
    result.exact = true;
  } else if (const auto seconds = time_stamp(file, "timestamp");
             seconds && can_be(*seconds, times)) {
    const WallNs begin = *seconds * second_ns;
    result.recorded_at = std::clamp(times.modified, begin, begin + second_ns - 1);
  }
}

}  // namespace

ErrorFile parse_error_file(std::string content, const ErrorFileTimes& times) {
  const json file = parsed(content);
  ErrorFile result;
  result.message = error_file_message(content);
  set_recorded_at(result, file, times);
  result.whole = file.is_object() || is_too_long(content);
  const json* usage_error = extra(file, "usage_error");
  result.usage_error = usage_error != nullptr && *usage_error == true;
  result.content = std::move(content);
  return result;
}

std::string error_file_message(std::string_view content) {
  const json file = parsed(content);
  if (std::string text = torch_message(file); !text.empty()) return text;
  std::string text = stripped(content);
  if (text.size() > foreign_bytes_max) text = text.substr(0, foreign_bytes_max) + " ...";
  return text;
}

std::string with_error_code(std::string_view content, int error_code) {
  auto file = rendezvous::ordered_json_of(with_whole_pairs(content));
  if (!file.is_object() || !file.contains("message")) return "";
  // torchrun, too, leaves the flat format as it is: there is no place for a code in it.
  if (file["message"].is_object()) file["message"]["errorCode"] = error_code;
  return rendezvous::json_page(file);
}

}  // namespace ddprun::launcher
