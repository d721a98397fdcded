// A folder for the length of a test.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace ddprun::testing {

// Fresh, below $TMPDIR, and removed with all it holds.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ddprun-test-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw std::runtime_error("cannot make the folder " + pattern);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    // Again when it stops half-way: a guard process may be removing its own part at the same time.
    constexpr int tries_max = 100;
    std::error_code error;
    for (int tries = 0; tries < tries_max; ++tries) {
      std::filesystem::remove_all(path_, error);
      if (!error) break;
    }
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(std::string_view name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace ddprun::testing
