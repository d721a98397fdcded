// Any line: a message or a reason. A message that was read can be written, and is read back as the
// same.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/control/control_message.h"
#include "tests/fuzz/finding.h"

using namespace ddprun::rendezvous;
using ddprun::fuzz::require;

namespace {

// JSON writes control characters as \u001b or as one letter; of those only ends of lines and tabs
// may be left.
void require_visible(std::string_view line) {
  for (std::size_t at = line.find('\\'); at != line.npos; at = line.find('\\', at + 2)) {
    require(std::string_view("ubfr").find(line.at(at + 1)) == std::string_view::npos,
            "a control character is left");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ParsedLine parsed = parse_control_message({reinterpret_cast<const char*>(data), size});
  require(parsed.message.has_value() == parsed.error.empty(), "neither a message nor a reason");
  if (!parsed.message) return 0;

  const std::string line = encode(*parsed.message);
  // Their ids are kept as they came, and so is a piece of an answer.
  const bool keeps_bytes = std::holds_alternative<Hello>(*parsed.message) ||
                           std::holds_alternative<Query>(*parsed.message) ||
                           std::holds_alternative<Told>(*parsed.message);
  if (!keeps_bytes) require_visible(line);
  require(line.size() <= control_line_bytes_max, "a line that nobody may send");
  require(line.find('\n') == line.size() - 1, "a line with a newline inside");
  const ParsedLine again = parse_control_message(line);
  require(again.message.has_value(), "what was written is refused: " + again.error);
  require(type_name(*again.message) == type_name(*parsed.message), "it became another message");
  require(encode(*again.message) == line, "it does not come back as it was");
  return 0;
}
