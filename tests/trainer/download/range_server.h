// A test's own HTTP server on loopback (range_server.py), and what was asked of it.
#pragma once

#include <algorithm>
#include <chrono>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/testing/process.h"
#include "tests/trainer/scratch.h"

namespace ddprun::trainer {

class RangeServer {
 public:
  // Serves `folder`; `modes` as the script has them.
  explicit RangeServer(const std::filesystem::path& folder,
                       const std::vector<std::string>& modes = {})
      : process_(command(folder, scratch_ / "log", modes)) {
    if (!process_.wait_for_output("listening", std::chrono::seconds(10))) {
      throw std::runtime_error("the server did not start: " + process_.output());
    }
    const std::string& text = process_.output();
    const std::size_t at = text.find("port=") + 5;
    address_ = "http://127.0.0.1:" + text.substr(at, text.find(' ', at) - at);
    // Where a proxy is set it would be asked for this address too.
    ::setenv("no_proxy", "127.0.0.1", 1);
  }

  const std::string& address() const { return address_; }

  // "/name" or "/name bytes=12-", in order.
  std::vector<std::string> requests() const {
    std::vector<std::string> lines;
    std::istringstream log(content_of(scratch_ / "log"));
    for (std::string line; std::getline(log, line);) {
      if (line.ends_with(' ')) line.pop_back();
      lines.push_back(line);
    }
    return lines;
  }

 private:
  static std::vector<std::string> command(const std::filesystem::path& folder,
                                          const std::filesystem::path& log,
                                          const std::vector<std::string>& modes) {
    const std::string script = DDPRUN_SOURCE_DIR "/tests/trainer/download/range_server.py";
    std::vector<std::string> words{"python3", "-B", script, folder, log};
    words.insert(words.end(), modes.begin(), modes.end());
    return words;
  }

  ScratchFolder scratch_;
  testing::Process process_;
  std::string address_;
};

}  // namespace ddprun::trainer
