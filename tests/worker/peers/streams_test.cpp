// Messages that come before a frame that is expected: kept in their order, and no more than there
// is room for.
#include "worker/peers/streams.h"

#include <sys/socket.h>

#include <cstring>

#include "tests/testing/catch.h"

using namespace ddprun::worker;
using Progress = PeerStreams::Progress;

namespace {

constexpr Epoch epoch = 7;
const Call barrier{.sequence = 1, .kind = CallKind::Barrier};

Call message(std::uint32_t number, std::size_t bytes) {
  return {.count = bytes, .sequence = number, .type = DataType::UInt8, .kind = CallKind::Message};
}

// Rank 0, and the other end of its connection from rank 1.
struct Ends {
  Ends() {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    std::vector<PeerLink> links(2);
    links[1] = PeerLink(UniqueFd(fds[0]));
    other = UniqueFd(fds[1]);
    streams = std::make_unique<PeerStreams>(0, epoch, std::move(links));
  }

  // Rank 0 takes what it can after each write, so that any amount goes through.
  void write(const char* data, std::size_t bytes) {
    while (bytes > 0) {
      const ssize_t sent = ::send(other.get(), data, bytes, MSG_NOSIGNAL);
      if (sent < 0) REQUIRE(errno == EAGAIN);
      if (sent > 0) {
        data += sent;
        bytes -= static_cast<std::size_t>(sent);
      }
      if (move() == Progress::Failed || (sent < 0 && streams->held(1))) return;
    }
  }
  void write(const Call& call, const std::string& payload) {
    FrameHeader header;
    header.epoch = epoch;
    header.call = call;
    header.bytes = payload.size();
    std::string frame(sizeof(header), '\0');
    std::memcpy(frame.data(), &header, sizeof(header));
    frame += payload;
    write(frame.data(), frame.size());
  }
  void write_message(std::uint32_t number, const std::string& payload) {
    write(message(number, payload.size()), payload);
  }

  Progress move() {
    Progress progress;
    do {
      progress = streams->progress();
    } while (progress == Progress::Moved);
    return progress;
  }

  // Whether rank 0 has the message, and what it is.
  std::string receive(std::uint32_t number, std::size_t bytes) {
    std::string data(bytes, '?');
    const auto ticket =
        streams->post_receive(1, message(number, bytes), 0, data.data(), data.size());
    if (move() == Progress::Failed) return streams->fault().reason;
    return streams->received(1, ticket, Traffic::Messages) ? data : "not here";
  }

  bool has_barrier() const { return streams->received(1, 1); }

  UniqueFd other;
  std::unique_ptr<PeerStreams> streams;
};

}  // namespace

TEST_CASE("messages before an expected frame let it through, and are received after it",
          "[worker][streams]") {
  Ends ends;
  ends.streams->post_receive(1, barrier, 0, nullptr, 0);
  ends.write_message(1, "first");
  CHECK(ends.streams->kept(1) == message(1, 5));
  CHECK_FALSE(ends.streams->held(1));
  ends.write_message(2, "");
  ends.write_message(3, std::string(1'000'000, 'x'));
  CHECK_FALSE(ends.has_barrier());
  ends.write(barrier, "");
  CHECK(ends.has_barrier());
  CHECK(ends.streams->idle());

  CHECK(ends.receive(1, 5) == "first");
  CHECK(ends.receive(2, 0).empty());
  ends.write_message(4, "fourth");
  CHECK(ends.receive(3, 1'000'000) == std::string(1'000'000, 'x'));
  CHECK_FALSE(ends.streams->kept(1));
  CHECK(ends.receive(4, 6) == "fourth");
  CHECK(ends.streams->idle());
}

TEST_CASE("a message is received that was kept only in part when its receive was posted",
          "[worker][streams]") {
  Ends ends;
  ends.streams->post_receive(1, barrier, 0, nullptr, 0);
  FrameHeader header;
  header.epoch = epoch;
  header.call = message(1, 10);
  header.bytes = 10;
  ends.write(reinterpret_cast<const char*>(&header), sizeof(header));
  ends.write("01234", 5);
  CHECK(ends.streams->kept(1) == message(1, 10));
  std::string first(10, '?'), second(2, '?');
  ends.streams->post_receive(1, message(1, 10), 0, first.data(), first.size());
  ends.streams->post_receive(1, message(2, 2), 0, second.data(), second.size());
  CHECK(ends.move() == Progress::Blocked);
  CHECK_FALSE(ends.streams->received(1, 1, Traffic::Messages));
  ends.write("56789", 5);
  CHECK(first == "0123456789");
  CHECK(ends.streams->received(1, 1, Traffic::Messages));
  ends.write_message(2, "ab");
  ends.write(barrier, "");
  CHECK(second == "ab");
  CHECK(ends.has_barrier());
}

TEST_CASE("a message is kept where there is room for it with its header, and else held",
          "[worker][streams]") {
  Ends ends;
  ends.streams->post_receive(1, barrier, 0, nullptr, 0);
  const std::size_t most = kept_bytes_max - 2 * sizeof(FrameHeader) - 1;
  ends.write_message(1, std::string(most, 'x'));
  ends.write_message(2, "12");
  CHECK(ends.streams->held(1) == message(2, 2));
  CHECK(ends.move() == Progress::Blocked);
  ends.write(barrier, "");
  CHECK_FALSE(ends.has_barrier());

  CHECK(ends.receive(1, most) == std::string(most, 'x'));  // And there is room again.
  CHECK(ends.has_barrier());
  CHECK(ends.receive(2, 2) == "12");
}

TEST_CASE("a kept message that does not fit its receive is refused as one that comes later is",
          "[worker][streams]") {
  for (const bool kept : {false, true}) {
    Ends ends;
    if (kept) ends.streams->post_receive(1, barrier, 0, nullptr, 0);
    ends.write_message(1, "12");
    CHECK(ends.streams->kept(1).has_value() == kept);
    CHECK(ends.receive(1, 3) ==
          "rank 0 called send/recv(count=3, uint8), call 1, but rank 1 called send/recv(count=2, "
          "uint8), call 1; all ranks must make the same calls in the same order");
  }
}

TEST_CASE("a collective's frame before a message that is expected is held, and never kept",
          "[worker][streams]") {
  Ends ends;
  char byte = 0;
  ends.streams->post_receive(1, message(1, 1), 0, &byte, 1);
  ends.write(barrier, "");
  CHECK(ends.streams->held(1) == barrier);
  CHECK_FALSE(ends.streams->kept(1));
}
