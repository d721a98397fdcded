// What is left of the host's memory, by files of a kernel that the tests write; and that nobody
// takes more than that.
#include "worker/host_memory.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"
#include "tests/worker/communicator_cluster.h"

using namespace ddprun::worker;
using ddprun::testing::contains;
using ddprun::testing::TemporaryFolder;

namespace {

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

// Without the question whether so much is there, this would be what ends such an allocation, and
// not the host: shared memory is a file here, and ordinary memory a part of the address space.
void limit_this_process() {
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit file{64 << 20, 64 << 20};
  ::setrlimit(RLIMIT_FSIZE, &file);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const rlimit space{8 * gib, 8 * gib};
  ::setrlimit(RLIMIT_AS, &space);
#endif
}

// True: too much was refused as that, and the communicator could be used afterwards.
bool refuses_too_much(Communicator& communicator) {
  std::string refused;
  try {
    communicator.allocate(std::size_t{1} << 46);
  } catch (const OutOfMemory& error) {
    refused = error.what();
  }
  const auto memory = communicator.allocate(4096);
  communicator.barrier();
  return contains(refused, "65536.0 GiB of memory are asked for, and ");
}

}  // namespace

TEST_CASE("what is left is what is available and free swap", "[worker][memory]") {
  const TemporaryFolder root;
  const auto left_where = [&](const std::string& meminfo) {
    write(root / "proc/meminfo", meminfo);
    return memory_left(root.path());
  };
  CHECK(left_where("MemTotal:       16000000 kB\nMemFree:          100 kB\n"
                   "MemAvailable:    4194304 kB\nSwapTotal:       2097152 kB\n"
                   "SwapFree:        1048576 kB\n") == 5 * gib);
  CHECK(left_where("MemAvailable: 0 kB\n") == 0);
  CHECK(left_where("MemAvailable: 8 kB") == 8 * 1024);
  CHECK(left_where("MemTotal: 16000000 kB\n") == unlimited_memory);
  CHECK(left_where("") == unlimited_memory);
  CHECK(left_where("MemAvailable: some\n") == unlimited_memory);
}

TEST_CASE("a control group on the way to the root may leave less", "[worker][memory]") {
  const TemporaryFolder root;
  CHECK(memory_left(root.path()) == unlimited_memory);
  write(root / "proc/meminfo", "MemAvailable: 8388608 kB\n");
  CHECK(memory_left(root.path()) == 8 * gib);

  write(root / "proc/self/cgroup", "0::/job/step\n");
  const auto group = [&](const std::string& name, const std::string& most, std::uint64_t used) {
    write(root / ("sys/fs/cgroup/" + name + "/memory.max"), most + "\n");
    write(root / ("sys/fs/cgroup/" + name + "/memory.current"), std::to_string(used) + "\n");
  };
  group("job/step", "max", gib);
  group("job", std::to_string(4 * gib), 3 * gib);
  CHECK(memory_left(root.path()) == gib);
  // What is kept of files is given back; what is shared is no file.
  write(root / "sys/fs/cgroup/job/memory.stat",
        "anon 5\nfile 3221225472\nshmem 2147483648\ninactive_file 536870912\n"
        "active_file 268435456\nslab_reclaimable 268435456\n");
  CHECK(memory_left(root.path()) == 2 * gib);
  group("job/step", std::to_string(gib), 2 * gib);
  CHECK(memory_left(root.path()) == 0);

  // In a container, where the host's path is not there.
  write(root / "proc/self/cgroup", "0::/kubepods/pod7\n");
  CHECK(memory_left(root.path()) == 8 * gib);
  group("", std::to_string(3 * gib), gib);
  CHECK(memory_left(root.path()) == 2 * gib);
}

TEST_CASE("what cannot be had is told with both amounts", "[worker][memory]") {
  CHECK(lack_of_memory(gib, gib).empty());
  CHECK(lack_of_memory(gib, unlimited_memory).empty());
  CHECK(lack_of_memory(3 * gib / 2, gib) ==
        "1.5 GiB of memory are asked for, and 1.0 GiB are left");
}

TEST_CASE("an allocation beyond the host's memory is refused, and the communicator stays",
          "[worker][memory]") {
  for (const Wiring wiring : {Wiring::SharedMemory, Wiring::Tcp}) {
    const pid_t child = ::fork();
    if (child == 0) {
      limit_this_process();
      std::atomic<int> refused{0};
      const auto errors = spawn({.world = 2, .wiring = wiring}, [&](Communicator& communicator) {
        if (refuses_too_much(communicator)) ++refused;
      });
      ::_exit(refused == 2 && errors == std::vector<std::string>(2) ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    INFO(name_of(wiring));
    CHECK(status == 0);
  }
}
