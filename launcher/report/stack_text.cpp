// Demangles what it recognises and leaves every other line as it came: it may be anybody's text.
#include "launcher/report/stack_text.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace ddprun::launcher {
namespace {

// Of 40,000 names of LibTorch's, 0.2 % have more.
constexpr int references_max = 16;

// A name may refer to what stands in it before ("S1_", "T_"). Two references to the last part in
// each next one double it: 200 letters stand for gigabytes, and the library has no limit.
int references_in(std::string_view name) {
  int count = 0;
  for (std::size_t at = 0; (at = name.find_first_of("ST", at)) != name.npos;) {
    at = name.find_first_not_of("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", at + 1);
    if (at != name.npos && name[at] == '_') ++count;
  }
  return count;
}

// Without "_Z" it is a function of C, which the library takes for a type: "f" for float.
std::string demangled(const std::string& name) {
  if (!name.starts_with("_Z") || references_in(name) > references_max) return name;
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> readable(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 && readable ? readable.get() : name;
}

bool is_hexadecimal(std::string_view text) {
  return text.size() > 2 && text.substr(0, 2) == "0x" &&
         text.find_first_not_of("0123456789abcdef", 2) == text.npos;
}

std::string readable_line(std::string_view line) {
  const std::string as_it_is(line);
  const std::size_t bracket = line.rfind("[0x");
  if (bracket == line.npos || line.back() != ']' ||
      !is_hexadecimal(line.substr(bracket + 1, line.size() - bracket - 2))) {
    return as_it_is;
  }
  std::string_view place = line.substr(0, bracket);
  if (!place.empty() && place.back() == ' ') place.remove_suffix(1);  // backtrace_symbols_fd: none.
  const std::size_t open = place.rfind('(');
  if (open == place.npos || place.back() != ')') return as_it_is;
  const std::string_view inside = place.substr(open + 1, place.size() - open - 2);
  const std::size_t plus = inside.rfind('+');
  if (plus == inside.npos || !is_hexadecimal(inside.substr(plus + 1))) return as_it_is;
  if (plus == 0) return std::string(place);
  std::string_view program = place.substr(0, open);
  if (const auto slash = program.rfind('/'); slash != program.npos)
    program.remove_prefix(slash + 1);
  std::string text = demangled(std::string(inside.substr(0, plus)));
  text += inside.substr(plus);
  text += " in ";
  text += program;
  return text;
}

}  // namespace

std::string readable_stack(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t newline = text.find('\n');
    result += readable_line(text.substr(0, newline));
    if (newline == text.npos) break;
    result += '\n';
    text.remove_prefix(newline + 1);
  }
  return result;
}

}  // namespace ddprun::launcher
