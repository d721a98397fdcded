// The line that tells of a gap goes first, and counts as told when all of it was taken.
#include "command_line/gap_writer.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

namespace ddprun::command_line {
namespace {

// What waits, or is over, loses nothing that could be told of later.
bool is_refusal(int error) {
  return error != 0 && error != EAGAIN && error != EWOULDBLOCK && error != EPIPE &&
         error != ECONNRESET;
}

}  // namespace

std::string GapWriter::reason() const { return std::generic_category().message(error_); }

Written GapWriter::try_write(std::string_view text) {
  const Written written = write_(text);
  if (written.error == 0) line_start_ = text[written.bytes - 1] == '\n';
  return written;
}

Written GapWriter::write(std::string_view text) {
  Written written;
  if (!tell_all(written)) {
    return is_refusal(written.error) ? lose(text, written.error) : written;
  }
  written = try_write(text);
  return is_refusal(written.error) ? lose(text, written.error) : written;
}

bool GapWriter::tell() {
  Written failure;
  return tell_all(failure);
}

bool GapWriter::tell_all(Written& failure) {
  while (missing_ > 0) {
    if (note_.empty()) {
      noted_ = missing_;
      note_ = fmt::format("{}{} {} bytes of output are missing here: {}\n", line_start_ ? "" : "\n",
                          speaker_, noted_, reason());
      note_begun_ = false;
    }
    while (!note_.empty()) {
      failure = try_write(note_);
      if (failure.error != 0) {
        // The next one will count more. One that has begun and only waits is gone on with.
        if (is_refusal(failure.error) || !note_begun_) note_.clear();
        return false;
      }
      note_.erase(0, failure.bytes);
      note_begun_ = true;
    }
    missing_ -= noted_;
  }
  return true;
}

Written GapWriter::lose(std::string_view text, int error) {
  missing_ += text.size();
  error_ = error;
  return {text.size(), 0};
}

}  // namespace ddprun::command_line
