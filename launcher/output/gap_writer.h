// A console that refuses text for a while (a full disk, a quota, a file that may not grow): what it
// did not take is counted, and told on it where it is missing, once it takes text again.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/output/write_call.h"

namespace ddprun::launcher {

// For one thread at a time; the missing bytes may be asked for from any.
class GapWriter {
 public:
  explicit GapWriter(WriteCall write) : write_(std::move(write)) {}

  // EAGAIN: nothing can be taken now. EPIPE and ECONNRESET: nobody reads any more. After any other
  // error `text` counts as taken and missing; what comes next is tried again.
  Written write(std::string_view text);

  // That were not told of on the console itself; why, in words.
  std::size_t missing_bytes() const { return missing_; }
  std::string reason() const;

 private:
  bool write_note(Written& failure);
  Written lose(std::string_view text, int error);
  Written try_write(std::string_view text);

  WriteCall write_;
  std::atomic<std::size_t> missing_ = 0;
  std::atomic<int> error_ = 0;
  std::string note_;  // The rest of the line that tells of them.
  bool line_start_ = true;
};

}  // namespace ddprun::launcher
