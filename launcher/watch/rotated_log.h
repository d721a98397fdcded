// What a stream has written, from where it was read to last: in one file, or with --log-rotate in
// full ones and the one that is being written.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <string_view>

#include "launcher/watch/shown_lines.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

class RotatedLog {
 public:
  // What is passed on of a line that has not ended.
  enum class Unfinished {
    Nothing,
    State,  // Where one that is redrawn, as a progress bar is, stands by now.
    All,    // No more comes.
  };

  // `prefix`: in front of each line. `lines`: begin with the last ones; nothing: with the first.
  RotatedLog(std::string path, std::string prefix, std::optional<int> lines);

  // Writes what is new to stdout, line by line (shown_lines.h). False: nobody reads what we write.
  // From the first call on a file is open; throws std::system_error where none may be opened.
  bool pass_on(Unfinished unfinished);

 private:
  rendezvous::UniqueFd file(int number) const;
  bool open_first();
  std::optional<int> next_file() const;
  bool open_next(int number);
  bool is_open(const struct stat& there) const;
  int seek_to_last(int lines);
  bool write_line(std::string_view line) const;

  std::string path_;
  std::string prefix_;
  std::optional<int> lines_;
  rendezvous::UniqueFd fd_;
  int number_ = 0;  // That the open file has, or gets when it is full.
  ShownLines shown_;
};

}  // namespace ddprun::launcher
