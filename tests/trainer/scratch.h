// What tests of trainer/ share: a scratch folder, and Python as an oracle.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"

namespace ddprun::trainer {

// A TemporaryFolder whose names are paths.
class ScratchFolder {
 public:
  std::filesystem::path path() const { return folder_.path(); }
  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }

 private:
  testing::TemporaryFolder folder_;
};

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

using testing::contains;
using testing::content_of;
using testing::message_of;

// For a shell. Appends, because g++ 12 warns (wrongly) about "'" + a temporary string.
inline std::string in_quotes(const std::string& text) {
  std::string result = "'";
  result += text;
  result += "'";
  return result;
}

// Runs a shell command with its output in `output`; returns the exit code, or 128 + signal.
inline int run_command(const std::string& command, const std::filesystem::path& output) {
  const int status = std::system((command + " > '" + output.string() + "' 2>&1").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A Python with torch and torchvision, and the script that computes what ours is compared with.
inline const std::filesystem::path oracle_python = DDPRUN_SOURCE_DIR "/.deps/peer/bin/python";
inline const std::string oracle_script = DDPRUN_SOURCE_DIR "/tests/trainer/oracle.py";

inline bool has_oracle() { return std::filesystem::exists(oracle_python); }

inline int run_oracle(const std::string& arguments, const std::filesystem::path& output) {
  return run_command(
      "OMP_NUM_THREADS=1 '" + oracle_python.string() + "' -B '" + oracle_script + "' " + arguments,
      output);
}

}  // namespace ddprun::trainer
