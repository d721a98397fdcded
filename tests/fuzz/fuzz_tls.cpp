// A handshake with any bytes in it. From a stranger: never established, nothing given out, little
// sent. Between two that have the key, changed on the way: what is given out is what was said, or
// nothing.
//
// The first byte says which of the two, and whom the stranger meets; then come the stranger's
// bytes, or three bytes for each change: what is done to which byte of the next flight.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/secure/psk.h"
#include "rendezvous/secure/tls_session.h"
#include "tests/fuzz/finding.h"

using namespace ddprun::rendezvous;
using ddprun::fuzz::require;

namespace {

using Role = TlsSession::Role;

constexpr std::size_t chunk_bytes = 97;
constexpr std::size_t answer_bytes_max = 4096;  // To a stranger, in all.

std::shared_ptr<const TlsContext> context() {
  static const auto shared =
      std::make_shared<TlsContext>(control_key(SecretBytes::copy_of(std::string(64, 's')), "job"));
  return shared;
}

void meet_stranger(Role role, std::string_view bytes) {
  TlsSession session(context(), role);
  std::size_t answered = 0;
  session.receive("");
  for (; !bytes.empty(); bytes.remove_prefix(std::min(bytes.size(), chunk_bytes))) {
    session.receive(bytes.substr(0, chunk_bytes));
    answered += session.take_to_send().size();
    require(session.take_received().empty(), "a stranger's words were taken");
  }
  require(!session.established(), "a stranger was believed to have the key");
  require(session.failure() == TlsFailure::None || !session.why().empty(), "an end without a word");
  require(answered <= answer_bytes_max, "a stranger was sent much");
}

class Changes {
 public:
  explicit Changes(std::string_view script) : script_(script) {}

  std::string apply(std::string flight) {
    if (script_.size() < 3 || flight.empty()) return flight;
    const auto what = static_cast<unsigned char>(script_[0]);
    const std::size_t at = static_cast<unsigned char>(script_[1]) * flight.size() / 256;
    const char value = script_[2];
    script_.remove_prefix(3);
    if (what % 5 == 1) flight[at] = static_cast<char>(flight[at] ^ value);
    if (what % 5 == 2) flight.insert(at, 1 + what / 5, value);
    if (what % 5 == 3) flight.erase(at, 1 + what / 5);
    if (what % 5 == 4) flight += flight;  // Said twice.
    return flight;
  }

 private:
  std::string_view script_;
};

void meet_changed(std::string_view script) {
  TlsSession client(context(), Role::Client), server(context(), Role::Server);
  const std::string question = "{\"type\":\"hello\"}\n", answer = "{\"type\":\"welcome\"}\n";
  Changes changes(script);
  client.send(question);
  server.send(answer);
  client.receive("");
  std::string heard_by_server, heard_by_client;
  for (int flight = 0; flight < 8; ++flight) {
    server.receive(changes.apply(client.take_to_send()));
    client.receive(changes.apply(server.take_to_send()));
    heard_by_server += server.take_received();
    heard_by_client += client.take_received();
  }
  if (script.empty())
    require(heard_by_client == answer, "nothing was changed, and they do not talk");
  require(question.rfind(heard_by_server, 0) == 0, "the server heard what the client did not say");
  require(answer.rfind(heard_by_client, 0) == 0, "the client heard what the server did not say");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 1) != 0) {
    meet_changed(rest);
  } else {
    meet_stranger((data[0] & 2) != 0 ? Role::Client : Role::Server, rest);
  }
  return 0;
}
