// What a dying worker left in its TORCHELASTIC_ERROR_FILE: torch's two formats and ours (message,
// call stack, time), or any text, since nothing that a dying worker wrote should be lost.
//
// A core: text and times in, values out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun::launcher {

// The clock of one machine, in nanoseconds since 1970: only times of the same node are compared.
using WallNs = std::int64_t;

// Of a longer one only the beginning is read.
inline constexpr std::size_t error_file_bytes_max = 1 << 20;

struct ErrorFile {
  std::string content;     // As it was read.
  std::string message;     // For people; "" = there is nothing to read.
  WallNs recorded_at = 0;  // When its writer met the error.
  bool exact = false;      // As its writer says. Else the file system's clock, which ticks slowly.
  bool whole = false;      // A JSON object, or too long. Else foreign text, or still being written.
  bool usage_error = false;  // Its writer says that what its user gave is wrong.
};

// The times that a time stamp is checked against.
struct ErrorFileTimes {
  WallNs modified = 0;       // Of the file.
  WallNs attempt_began = 0;  // No error of this attempt is older ...
  WallNs now = 0;            // ... or younger.
};

ErrorFile parse_error_file(std::string content, const ErrorFileTimes& times);

// The message alone; names in a C++ stack are made readable.
std::string error_file_message(std::string_view content);

// `content` with "errorCode" in its message, as torchrun passes a worker's error file on; "" when
// it is not in torch's format.
std::string with_error_code(std::string_view content, int error_code);

}  // namespace ddprun::launcher
