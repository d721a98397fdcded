// A console or a log that refuses text for a while (a full disk, a quota, a file that may not
// grow): what it did not take is counted, and told on it where it is missing, once it takes text
// again.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "command_line/write_call.h"

namespace ddprun::command_line {

// For one thread at a time; the missing bytes may be asked for from any.
class GapWriter {
 public:
  // `speaker`: whose word the note of a gap is, "[ddprun]".
  GapWriter(WriteCall write, std::string speaker)
      : write_(std::move(write)), speaker_(std::move(speaker)) {}

  // EAGAIN: nothing can be taken now. EPIPE and ECONNRESET: nobody reads any more. After any other
  // error `text` counts as taken and missing; what comes next is tried again.
  Written write(std::string_view text);
  // What waits can wait no longer: it counts as taken and missing, because of `error`.
  Written lose(std::string_view text, int error);
  // Tells what is missing without waiting for text that comes next. False: it cannot be told now.
  bool tell();

  // That were not told of on the console itself; why, in words.
  std::size_t missing_bytes() const { return missing_; }
  std::string reason() const;
  int error() const { return error_; }  // The same as an errno.

 private:
  bool tell_all(Written& failure);
  Written try_write(std::string_view text);

  WriteCall write_;
  std::string speaker_;
  std::atomic<std::size_t> missing_ = 0;
  std::atomic<int> error_ = 0;
  std::string note_;         // The rest of the line that tells of some of them:
  std::size_t noted_ = 0;    // so many,
  bool note_begun_ = false;  // and some of the line was taken.
  bool line_start_ = true;
};

}  // namespace ddprun::command_line
