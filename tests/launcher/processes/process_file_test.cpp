// Files of /proc whose process ends while they are read.
#include "launcher/processes/process_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rendezvous/unique_fd.h"
#include "tests/testing/catch.h"

using namespace ddprun::launcher;

namespace {

std::string stat_of(int pid) { return "/proc/" + std::to_string(pid) + "/stat"; }

}  // namespace

TEST_CASE("a process file says nothing once its process has gone, before it is read or open",
          "[process-file]") {
  const int pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    ::pause();
    ::_exit(0);
  }
  const ddprun::rendezvous::UniqueFd file(::open(stat_of(pid).c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(file);
  CHECK(read_process_file(stat_of(pid)).starts_with(std::to_string(pid) + " ("));
  ::kill(pid, SIGKILL);
  REQUIRE(::waitpid(pid, nullptr, 0) == pid);
  char byte;
  REQUIRE(::read(file.get(), &byte, 1) == -1);  // So it is, and not an end of the file.
  CHECK(read_to_end(file.get()).empty());
  CHECK(read_process_file(stat_of(pid)).empty());
}

TEST_CASE("a file that is longer than a page is read whole", "[process-file]") {
  const std::string maps = read_process_file("/proc/self/smaps");
  CHECK(maps.size() > 4096);
  CHECK(maps.ends_with("\n"));
}
