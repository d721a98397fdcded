// What a stream has written, from where it was read to last: in one file, or with --log-rotate in
// full ones and the one that is being written.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

class RotatedLog {
 public:
  // `prefix`: in front of each line. `lines`: begin with the last ones; nothing: with the first.
  RotatedLog(std::string path, std::string prefix, std::optional<int> lines);

  // Writes what is new to stdout, in whole lines unless `last`. False: nobody reads what we write.
  bool pass_on(bool last);

 private:
  rendezvous::UniqueFd file(int number) const;
  bool open_first();
  std::optional<int> next_file() const;
  bool open_next(int number);
  bool is_open(const struct stat& there) const;
  int seek_to_last(int lines);
  bool write_lines(std::string& text, bool last);
  bool write_line(std::string_view line) const;

  std::string path_;
  std::string prefix_;
  std::optional<int> lines_;
  rendezvous::UniqueFd fd_;
  int number_ = 0;    // That the open file has, or gets when it is full.
  std::string rest_;  // The beginning of a line whose end is to come.
};

}  // namespace ddprun::launcher
