// A segment that was made ahead is the same as one that was not, and this process's alone.
#include "worker/peers/shared_memory.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>

#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using ddprun::testing::contains;
using ddprun::testing::message_of;
using ddprun::worker::SegmentAddress;
using ddprun::worker::SharedSegment;

namespace {

constexpr std::size_t size = 3 * 4096;

bool is_zeroed(const SharedSegment& segment) {
  const auto* const bytes = static_cast<const unsigned char*>(segment.data());
  return std::all_of(bytes, bytes + segment.size(), [](unsigned char byte) { return byte == 0; });
}

// What create() returns where nothing was prepared takes the next free descriptor.
int descriptor_of_next(std::size_t bytes) { return SharedSegment::create(bytes).address().fd; }

// As older kernels do under a fast timer: from now on each fallocate() of more than a mebibyte ends
// with EINTR, here and in all children. False: this system has no such filters.
bool interrupt_long_reservations() {
  constexpr std::uint32_t low_half = std::endian::native == std::endian::little ? 0 : 4;
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[3]) + low_half),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 1 << 20, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINTR),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace

TEST_CASE("a segment that was prepared is handed out once, to who asks for its size", "[worker]") {
  SharedSegment::prepare(size);
  const int next = ::dup(0);  // After the one that is prepared.
  ::close(next);
  CHECK(descriptor_of_next(2 * size) == next);

  const SharedSegment first = SharedSegment::create(size);
  CHECK(first.address().fd < next);
  CHECK(first.size() == size);
  CHECK(is_zeroed(first));
  const SharedSegment second = SharedSegment::create(size);
  CHECK(second.address().fd == next);
  CHECK(second.address().token != first.address().token);
}

TEST_CASE("a peer maps a prepared segment, and sees what its owner writes", "[worker]") {
  SharedSegment::prepare(size);
  const SharedSegment own = SharedSegment::create(size);
  const SharedSegment theirs = SharedSegment::open(own.address());
  static_cast<char*>(own.data())[size - 1] = 'x';
  CHECK(static_cast<const char*>(theirs.data())[size - 1] == 'x');
}

TEST_CASE("a peer maps what was announced, and nothing else", "[worker]") {
  const SharedSegment own = SharedSegment::create(size);
  const auto refusal = [](const SegmentAddress& address) {
    return message_of<std::runtime_error>([&] { SharedSegment::open(address); });
  };
  const SegmentAddress good = own.address();
  CHECK(refusal(good).empty());
  SegmentAddress other = good;
  other.token.pop_back();
  CHECK(refusal(other) == "no shared memory offered");
  other.token += good.token.back() == '0' ? '1' : '0';
  CHECK(contains(refusal(other), "is not its memory: another container numbers its processes"));
  other = good;
  other.bytes += 4096;
  CHECK(contains(refusal(other), "has another size than announced"));
  other = good;
  other.fd = -1;
  CHECK(contains(refusal(other), "is not its memory"));
  static_cast<char*>(own.data())[-4096] ^= 1;  // Its token, in the page before.
  CHECK(contains(refusal(good), "does not carry the announced token"));
}

TEST_CASE("nobody changes the size of a segment under a peer", "[worker]") {
  const SharedSegment own = SharedSegment::create(size);
  for (const off_t bytes : {4096, 100 * 4096}) {
    CHECK(::ftruncate(own.address().fd, bytes) != 0);
    CHECK(errno == EPERM);
  }
}

TEST_CASE("a child that was forked does not hand out what its parent has prepared", "[worker]") {
  SharedSegment::prepare(size);
  const pid_t child = ::fork();
  if (child == 0) {
    const SharedSegment its = SharedSegment::create(size);
    static_cast<char*>(its.data())[0] = 'x';
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(is_zeroed(SharedSegment::create(size)));
}

TEST_CASE("a segment is reserved in parts where signals end long reservations", "[worker]") {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!interrupt_long_reservations()) ::_exit(2);
    try {
      const std::size_t bytes = 100'000'000;
      const SharedSegment segment = SharedSegment::create(bytes);
      struct stat status {};
      const bool held = ::fstat(segment.address().fd, &status) == 0 &&
                        static_cast<std::size_t>(status.st_blocks) * 512 >= bytes;
      ::_exit(held ? 0 : 1);
    } catch (const std::exception&) {
      ::_exit(1);
    }
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) DDPRUN_SKIP("no seccomp filters here");
  CHECK(status == 0);
}
