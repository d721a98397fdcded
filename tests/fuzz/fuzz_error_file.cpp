// What a dying worker left in its error file: any bytes give a message for people and a time that
// can be, and what is passed on is JSON.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "launcher/report/error_file.h"
#include "tests/fuzz/finding.h"

using namespace ddprun::launcher;
using ddprun::fuzz::require;

namespace {

constexpr WallNs second = 1'000'000'000;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string content(reinterpret_cast<const char*>(data), size);
  const ErrorFileTimes times{.modified = 1'700'000'050 * second + 7,
                             .attempt_began = 1'700'000'000 * second,
                             .now = 1'700'000'100 * second};
  const ErrorFile file = parse_error_file(content, times);
  require(file.content == content, "the content is not kept");
  require(file.recorded_at >= times.attempt_began - 2 * second &&
              file.recorded_at <= times.now + 2 * second,
          "an error of another time");
  require(file.message == error_file_message(content), "two messages of one file");
  require(file.message.size() <= 600 * (size + 1), "far more words than were written");

  const std::string passed_on = with_error_code(content, 3);
  if (passed_on.empty()) return 0;
  require(file.whole, "a part of a file is passed on");
  const auto json = nlohmann::json::parse(passed_on, nullptr, /*allow_exceptions=*/false);
  require(json.is_object() && json.contains("message"), "what is passed on is not torch's format");
  require(!json["message"].is_object() || json["message"]["errorCode"] == 3, "without its code");
  return 0;
}
