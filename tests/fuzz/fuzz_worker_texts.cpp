// Texts that workers and their launcher find in the store, in a variable and in a socket: any bytes
// are what was written there, or are refused.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/contract/spare_channel.h"
#include "tests/fuzz/finding.h"
#include "worker/communicator.h"
#include "worker/host_places.h"
#include "worker/peers/mesh.h"

using namespace ddprun::worker;
using ddprun::fuzz::require;
namespace rendezvous = ddprun::rendezvous;

namespace {

void address(const std::string& text) {
  try {
    const PeerAddress read = parse_peer_address(text, 0);
    const std::string written = to_text(read);
    require(to_text(parse_peer_address(written, 0)) == written, "an address does not come back");
  } catch (const CommunicatorError& error) {
    for (const char c : std::string_view(error.what())) {
      require(static_cast<unsigned char>(c) >= 0x20, "a control character in a message");
    }
  }
}

void note(const std::string& text) {
  const WorkerNote read = parse_worker_note(text);
  const std::string written = to_text(read);
  require(to_text(parse_worker_note(written)) == written, "a note does not come back");
  const HostPlace place = place_of(0, {read, read});
  require(place.local_rank >= 0 && place.local_world_size >= 1, "a place that is none");
}

// Of a launcher that sends what it likes, in pieces.
void messages(const std::string& text) {
  std::string received;
  std::size_t taken_bytes = 0;
  for (const char c : text) {
    received += c;
    const std::size_t before = received.size();
    if (const auto message = rendezvous::take_message(received)) {
      taken_bytes += before - received.size();
      const auto again = rendezvous::read_rank_message(rendezvous::rank_message(*message));
      require(again == message, "a message does not come back");
      rendezvous::attempt_over(*message);
    }
  }
  require(taken_bytes + received.size() == text.size(), "bytes are lost");
}

void marks(const std::string& text) {
  const auto read = rendezvous::read_death_marks(text);
  if (!read) return;
  const std::string written = rendezvous::death_marks_text(*read);
  const auto again = rendezvous::read_death_marks(written);
  require(again && rendezvous::death_marks_text(*again) == written, "marks do not come back");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  address(text);
  note(text);
  messages(text);
  marks(text);
  return 0;
}
