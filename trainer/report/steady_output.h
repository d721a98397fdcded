// Standard output and error of train: what is refused for a while (a full disk, a quota, a file
// that may not grow) is counted, and told where it is missing, once it can be written again. A
// stream of the library says nothing any more after one failed write: not even what the run died
// of.
#pragma once

#include <chrono>
#include <mutex>
#include <streambuf>
#include <string>
#include <string_view>

#include "command_line/gap_writer.h"

namespace ddprun::trainer {

// What a stream writes with; any thread may use it. A reader that takes nothing for `reader_limit`
// has stalled: what comes until it reads again is missing, without another wait.
class SteadyOutput : public std::streambuf {
 public:
  // `fd` stays the caller's.
  explicit SteadyOutput(int fd, std::chrono::milliseconds reader_limit = std::chrono::seconds(10));

  // Writes what is left. What is missing at the end, in words for another place; "": nothing.
  // `name`: "stdout".
  std::string finish(std::string_view name);

 protected:
  int_type overflow(int_type letter) override;
  std::streamsize xsputn(const char* letters, std::streamsize count) override;
  int sync() override;

 private:
  // All with mutex_ held.
  void add(std::string_view letters);
  void write_out();
  bool waits_for_reader();

  std::mutex mutex_;
  const int fd_;
  const std::chrono::milliseconds reader_limit_;
  command_line::GapWriter writer_;
  bool stalled_ = false;  // The reader was waited for in vain.
  std::string text_;      // Not yet written.
};

// From now on std::cout and std::cerr write in this way: to the end of the process, so it must not
// end earlier. What libraries print to stdout comes line by line.
class SteadyConsole {
 public:
  SteadyConsole();
  SteadyConsole(const SteadyConsole&) = delete;
  SteadyConsole& operator=(const SteadyConsole&) = delete;

  // Nothing of importance comes any more: what is missing of standard output is told on the other.
  void finish();

 private:
  SteadyOutput out_;
  SteadyOutput errors_;
};

}  // namespace ddprun::trainer
