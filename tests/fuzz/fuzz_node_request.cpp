// What comes from a node that was started on another host, and what it is sent: bytes cut in any
// way are parted as in one piece, none is lost, and a message that was read is written as it was.
//
// The first byte says how long the pieces are.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hosts/node_request.h"
#include "tests/fuzz/finding.h"

using namespace ddprun::launcher;
using ddprun::fuzz::require;

namespace {

const std::string mark = "m";

struct Parted {
  std::string text;
  std::vector<std::string> messages;
  bool operator==(const Parted&) const = default;
};

Parted part(std::string_view bytes, std::size_t piece_bytes) {
  Parted parted;
  MarkedText stream{std::string(hello_mark)};
  const MarkedText::Into into{[&](std::string_view text) { parted.text += text; },
                              [&](std::string_view line) {
                                parted.messages.emplace_back(line);
                                stream.set_mark(message_mark(mark));
                              }};
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), piece_bytes);
    stream.add(bytes.substr(0, count), into);
    bytes.remove_prefix(count);
  }
  stream.finish(into);
  return parted;
}

std::string_view without_end(std::string_view line) { return line.substr(0, line.size() - 1); }

void read(std::string_view line) {
  if (const auto hello = read_hello(line)) {
    const std::string written = to_line(*hello);
    const auto again = read_hello(without_end(written).substr(hello_mark.size()));
    require(again && to_line(*again) == written, "a hello does not come back as it was");
  }
  if (const auto request = read_request(line)) {
    const auto again = read_request(without_end(to_line(*request)));
    require(again == request, "a request does not come back as it was");
  }
  if (const auto end = read_end(line)) {
    const std::string written = to_line(mark, *end);
    const auto again = read_end(without_end(written).substr(message_mark(mark).size()));
    require(again == end, "an end does not come back as it was");
  }
  read_opened(line);
  is_begun(line);
  if (const auto signal = read_signal(line)) {
    require(signal_line(*signal) == std::string(line) + "\n" || line.find(' ') != line.rfind(' ') ||
                line.find(" 0") != line.npos,
            "a signal of another number");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Parted whole = part(text, text.size() + 1);
  require(part(text, data[0] + std::size_t{1}) == whole, "pieces are parted otherwise");
  std::size_t bytes = whole.text.size();
  for (const std::string& message : whole.messages) bytes += message.size() + 1;
  require(bytes <= text.size(), "more came out than went in");
  if (whole.messages.empty()) require(whole.text == text, "text is lost");
  for (const std::string& message : whole.messages) read(message);
  read(text);
  return 0;
}
