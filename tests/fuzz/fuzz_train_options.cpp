// Any file for `train --config`, and any words after it, give options that can be checked again, or
// a message and a status. A line "%%" ends the file; each further line is a word.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/finding.h"
#include "trainer/options/read_command_line.h"
#include "trainer/options/train_options.h"

using namespace ddprun::trainer;
using ddprun::fuzz::require;

namespace {

// A file in memory, by the name under which this process finds it.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("config", MFD_CLOEXEC)) {
    require(
        fd_ >= 0 && ::write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
        "no file in memory");
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// What is written to a stream while this lives.
class Captured {
 public:
  explicit Captured(std::ostream& stream) : stream_(stream), before_(stream.rdbuf(text_.rdbuf())) {}
  ~Captured() { stream_.rdbuf(before_); }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::ostream& stream_;
  std::streambuf* before_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t end = std::min(text.find("%%\n"), text.size());
  const MemoryFile file(text.substr(0, end));
  std::vector<std::string> words{"train", "--config", file.path()};
  std::istringstream rest(std::string(text.substr(std::min(end + 3, text.size()))));
  for (std::string line; std::getline(rest, line);) {
    words.push_back(line.substr(0, line.find('\0')));
  }
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());

  static CommandLineReader reader;
  const Captured out(std::cout);
  try {
    const CommandLine command_line =
        reader.read(static_cast<int>(arguments.size()), arguments.data(), "train");
    if (command_line.options) {
      check_options(*command_line.options);
    } else if (command_line.exit_code == 2) {
      require(!command_line.problem.empty(), "refused without a word");
    } else {
      require(command_line.exit_code == 0, "another status than 0 and 2");
      require(!out.text().empty(), "a text was asked for, and none printed");
    }
  } catch (const std::exception& error) {
    require(false, std::string("an exception: ") + error.what());
  }
  return 0;
}
