// Any bytes, cut in any way, must give the requests that they give in one piece, and take no more
// memory than there are bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/wire/wire.h"
#include "tests/fuzz/finding.h"

using namespace ddprun::rendezvous;
using ddprun::fuzz::require;

namespace {

// Low enough that short inputs reach them.
constexpr WireLimits limits{.key_bytes_max = 64,
                            .value_bytes_max = 1'024,
                            .keys_per_request_max = 16,
                            .request_bytes_max = 1'500,
                            .large_value_bytes = 32};

void put_field(std::string& out, std::string_view field) {
  put_string(out, field);
  out += '|';
}

std::string describe(const StoreRequest& request) {
  std::string text(store_op_name(request.op));
  put_field(text, request.key);
  put_field(text, request.value);
  put_field(text, request.desired);
  put_number(text, request.number);
  for (const std::string_view item : request.items) put_field(text, item);
  return text;
}

// What a connection's shell does with a parser, and what came of it.
class Reading {
 public:
  // Gives the parser a piece in memory of its own, which ends with the call as a read buffer does.
  void feed(std::string_view piece, bool take_large) {
    received_ += piece.size();
    const std::vector<char> memory(piece.begin(), piece.end());
    std::string_view input(memory.data(), memory.size());
    if (take_large) receive_in_place(input);
    for (;;) {
      const std::size_t before = input.size();
      const ParseStatus status = parser_.next(input);
      if (status == ParseStatus::Request) {
        note_request(take_large);
        continue;
      }
      if (status == ParseStatus::Bad) {
        if (bad_.empty()) bad_ = parser_.bad_reason();
        require(!bad_.empty(), "refused without a reason");
        require(parser_.next(input) == ParseStatus::Bad, "a refused parser goes on");
        return;
      }
      require(input.empty(), "asks for more bytes before it has taken " + std::to_string(before));
      // Announced lengths take nothing: what is held came in, with room to grow and a constant.
      require(parser_.memory_bytes() <= 4 * received_ + 8'192, "holds more than it was given");
      return;
    }
  }
  // The peer says nothing for a while.
  void pause() {
    if (!bad_.empty() || !parser_.ambiguous()) return;
    parser_.resolve_as_delete();
    note_request(false);
  }
  bool same_as(const Reading& other) const {
    return requests_ == other.requests_ && bad_ == other.bad_ &&
           parser_.family() == other.parser_.family();
  }

 private:
  // What of a large value's middle can be received where it is kept.
  void receive_in_place(std::string_view& input) {
    const std::span<char> room = parser_.large_room();
    const std::size_t size = std::min(room.size(), input.size());
    if (size == 0) return;
    std::copy_n(input.data(), size, room.data());
    parser_.received(size);
    input.remove_prefix(size);
  }
  void note_request(bool take_large) {
    const StoreRequest& request = parser_.request();
    requests_.push_back(describe(request));
    if (!take_large) return;
    for (LargeField& large : request.large) {
      const std::string_view field = !request.items.empty() ? request.items[large.field]
                                     : large.field == 1     ? request.value
                                                            : request.desired;
      require(large.block.view() == field, "a large field is another one");
      const StoreBlock taken = std::move(large.block);
    }
  }

  StoreParser parser_{limits};
  std::size_t received_ = 0;
  std::vector<std::string> requests_;
  std::string bad_;
};

// `cut(rest)`: the size of the next piece. There is one pause, after `pause_at` bytes.
template <class Cut>
Reading read(std::string_view bytes, std::size_t pause_at, bool take_large, Cut cut) {
  Reading reading;
  for (const std::string_view part : {bytes.substr(0, pause_at), bytes.substr(pause_at)}) {
    for (std::size_t at = 0; at < part.size();) {
      const std::string_view piece = part.substr(at, cut(part.size() - at));
      reading.feed(piece, take_large);
      at += piece.size();
    }
    reading.pause();
  }
  return reading;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  // The cuts depend on the bytes alone, so that an input always does the same.
  std::uint32_t seed = 2'166'136'261u;
  for (const char c : bytes) seed = (seed ^ static_cast<unsigned char>(c)) * 16'777'619u;
  std::minstd_rand random(seed);
  const std::size_t pause_at = size == 0 ? 0 : random() % (size + 1);

  const auto whole = [](std::size_t rest) { return rest; };
  const auto single = [](std::size_t) { return std::size_t{1}; };
  const auto pieces = [&random](std::size_t) { return std::size_t{1} + random() % 24; };
  const Reading expected = read(bytes, pause_at, false, whole);
  require(expected.same_as(read(bytes, pause_at, true, single)), "byte by byte it reads otherwise");
  require(expected.same_as(read(bytes, pause_at, true, pieces)), "in pieces it reads otherwise");
  return 0;
}
