// A launcher that is killed in its first moments, when what should clean up after it has hardly
// been started.
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>

#include "tests/end_to_end/job_place.h"
#include "tests/testing/patience.h"

using namespace ddprun::testing;
namespace fs = std::filesystem;

namespace {

// Tells of what is made in a folder, when it is made.
class Births {
 public:
  explicit Births(const std::string& folder) : fd_(::inotify_init1(IN_CLOEXEC)) {
    REQUIRE(fd_ >= 0);
    REQUIRE(::inotify_add_watch(fd_, folder.c_str(), IN_CREATE) >= 0);
  }
  ~Births() { ::close(fd_); }
  Births(const Births&) = delete;
  Births& operator=(const Births&) = delete;

  // False: nothing whose name begins so was made in time.
  bool wait_for(const std::string& begin) const {
    const auto limit = static_cast<int>(patience(60s).count());
    alignas(inotify_event) std::array<char, 4096> buffer;
    for (pollfd ready{fd_, POLLIN, 0}; ::poll(&ready, 1, limit) == 1;) {
      const ssize_t size = ::read(fd_, buffer.data(), buffer.size());
      for (ssize_t at = 0; at < size;) {
        const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
        if (event->len > 0 && std::string(event->name).starts_with(begin)) return true;
        at += static_cast<ssize_t>(sizeof(inotify_event)) + event->len;
      }
    }
    return false;
  }

 private:
  int fd_;
};

}  // namespace

TEST_CASE("a launcher that is killed as it makes its folder leaves none") {
  const TemporaryFolder folder;
  for (int time = 0; time < 20; ++time) {
    const Births births(folder.path());
    Process launcher(launch({"--standalone"}) + shell("exec sleep 300"),
                     {{"TMPDIR", folder.path()}});
    REQUIRE(births.wait_for("ddprun_"));
    ::kill(launcher.pid(), SIGKILL);
    // Its output ends with the last process that has it, the guard.
    CHECK(launcher.wait(60s).status == 137);
    CHECK(launcher.wait_until([&] { return fs::is_empty(folder.path()); }, 20s));
  }
}
