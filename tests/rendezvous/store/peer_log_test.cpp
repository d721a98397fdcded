// Which refusals are worth a line, on a clock that the test turns.
#include "rendezvous/store/peer_log.h"

#include <string>

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

const PeerLog::Clock::time_point first_moment = PeerLog::Clock::time_point() + 1h;

}  // namespace

TEST_CASE("a host has one line an interval, with the number of those left out", "[peer_log]") {
  PeerLog log;
  CHECK(log.note("10.0.0.7:1", first_moment).wanted);
  CHECK_FALSE(log.note("10.0.0.7:2", first_moment + 1s).wanted);
  CHECK_FALSE(log.note("10.0.0.7:3", first_moment + 29s).wanted);

  const PeerLog::Line line = log.note("10.0.0.7:4", first_moment + 30s);

  CHECK(line.wanted);
  CHECK(uncounted(line) == " (and 2 more of that host since its last line)");
}

TEST_CASE("15.5: a stranger with a network of addresses has no more lines than others",
          "[peer_log]") {
  PeerLog log;
  std::size_t lines = 0;
  for (int i = 0; i < 100'000; ++i) {
    lines += log.note("10.0." + std::to_string(i % 65'536) + ":1", first_moment + i * 100us).wanted;
  }
  CHECK(lines == PeerLog::lines_max);

  const PeerLog::Line line = log.note("10.1.0.0:1", first_moment + 30s);
  CHECK(line.wanted);
  CHECK(line.others > 60'000);  // Those with a line of their own count apart.
}
