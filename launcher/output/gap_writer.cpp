// The line that tells of a gap goes first, and counts as told when all of it was taken.
#include "launcher/output/gap_writer.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

namespace ddprun::launcher {
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
  if (missing_ > 0 && !write_note(written)) {
    return is_refusal(written.error) ? lose(text, written.error) : written;
  }
  written = try_write(text);
  return is_refusal(written.error) ? lose(text, written.error) : written;
}

bool GapWriter::write_note(Written& failure) {
  if (note_.empty()) {
    note_ = fmt::format("{}[ddprun] {} bytes of output are missing here: {}\n",
                        line_start_ ? "" : "\n", missing_.load(), reason());
  }
  while (!note_.empty()) {
    failure = try_write(note_);
    if (failure.error != 0) {
      if (is_refusal(failure.error)) note_.clear();  // The next one will count more.
      return false;
    }
    note_.erase(0, failure.bytes);
  }
  missing_ = 0;
  return true;
}

Written GapWriter::lose(std::string_view text, int error) {
  missing_ += text.size();
  error_ = error;
  return {text.size(), 0};
}

}  // namespace ddprun::launcher
