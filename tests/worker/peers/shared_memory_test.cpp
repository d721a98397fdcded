// A segment that was made ahead is the same as one that was not, and this process's alone.
#include "worker/peers/shared_memory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "tests/testing/catch.h"

using ddprun::worker::SharedSegment;

namespace {

constexpr std::size_t size = 3 * 4096;

bool is_zeroed(const SharedSegment& segment) {
  const auto* const bytes = static_cast<const unsigned char*>(segment.data());
  return std::all_of(bytes, bytes + segment.size(), [](unsigned char byte) { return byte == 0; });
}

// What create() returns where nothing was prepared takes the next free descriptor.
int descriptor_of_next(std::size_t bytes) { return SharedSegment::create(bytes).address().fd; }

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
