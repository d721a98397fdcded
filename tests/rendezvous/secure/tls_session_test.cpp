// Two ends of a connection, with the test in the middle: it carries the bytes, keeps, changes and
// repeats them.
#include "rendezvous/secure/tls_session.h"

#include <random>

#include "rendezvous/first_byte.h"
#include "rendezvous/secure/openssl_library.h"
#include "rendezvous/secure/psk.h"
#include "tests/testing/catch.h"
#include "tests/testing/core_files.h"

using namespace ddprun::rendezvous;

namespace {

using Role = TlsSession::Role;
using Context = std::shared_ptr<const TlsContext>;

Context context_of(const std::string& secret, const std::string& run_id = "job") {
  return std::make_shared<TlsContext>(control_key(SecretBytes::copy_of(secret), run_id));
}

const std::string secret_a(64, 'a'), secret_b(64, 'b');

struct Pair {
  Pair(Context client_context, Context server_context)
      : client(std::move(client_context), Role::Client),
        server(std::move(server_context), Role::Server) {}

  // Carries bytes both ways until none are left; returns how many times.
  int carry() {
    int turns = 0;
    client.receive("");
    for (; turns < 20; ++turns) {
      const std::string there = client.take_to_send();
      if (!there.empty()) server.receive(there);
      const std::string back = server.take_to_send();
      if (!back.empty()) client.receive(back);
      to_server += there;
      to_client += back;
      if (there.empty() && back.empty()) break;
    }
    return turns;
  }

  TlsSession client, server;
  std::string to_server, to_client;  // All that was on the wire.
};

void check_refused(const TlsSession& session, TlsFailure failure) {
  INFO(session.why());
  CHECK_FALSE(session.established());
  CHECK(session.failure() == failure);
}

// OpenSSL's own idea of a peer, set up by the test as an attacker would.
class Stranger {
 public:
  explicit Stranger(bool server) {
    const OpenSsl& ssl = openssl();
    context = ssl.SSL_CTX_new(ssl.TLS_method());
    session_ = ssl.SSL_new(context);
    in_ = ssl.BIO_new(ssl.BIO_s_mem());
    out_ = ssl.BIO_new(ssl.BIO_s_mem());
    ssl.SSL_set_bio(session_, in_, out_);
    server ? ssl.SSL_set_accept_state(session_) : ssl.SSL_set_connect_state(session_);
  }
  ~Stranger() {
    openssl().SSL_free(session_);
    openssl().SSL_CTX_free(context);
  }
  Stranger(const Stranger&) = delete;

  // One turn of its handshake, with these bytes.
  std::string turn(const std::string& wire = "") {
    const OpenSsl& ssl = openssl();
    if (!wire.empty()) ssl.BIO_write(in_, wire.data(), static_cast<int>(wire.size()));
    ssl.SSL_do_handshake(session_);
    ssl.ERR_clear_error();
    std::string answer(ssl.BIO_ctrl_pending(out_), '\0');
    if (!answer.empty()) ssl.BIO_read(out_, answer.data(), static_cast<int>(answer.size()));
    return answer;
  }
  void limit_to(int version) {
    openssl().SSL_CTX_ctrl(context, SSL_CTRL_SET_MAX_PROTO_VERSION, version, nullptr);
    openssl().SSL_free(session_);
    const OpenSsl& ssl = openssl();
    session_ = ssl.SSL_new(context);
    in_ = ssl.BIO_new(ssl.BIO_s_mem());
    out_ = ssl.BIO_new(ssl.BIO_s_mem());
    ssl.SSL_set_bio(session_, in_, out_);
    ssl.SSL_set_connect_state(session_);
  }
  // Puts the maximum into the hello alone.
  SSL_CTX* context;

 private:
  SSL* session_;
  BIO* in_;
  BIO* out_;
};

}  // namespace

TEST_CASE("two with the same secret talk, and the wire holds neither words nor key",
          "[secure][tls]") {
  Pair pair(context_of(secret_a), context_of(secret_a));
  pair.client.send("a line before the handshake is done\n");
  pair.carry();

  REQUIRE(pair.client.established());
  REQUIRE(pair.server.established());
  CHECK(pair.server.take_received() == "a line before the handshake is done\n");
  pair.server.send("the answer\n");
  pair.carry();
  CHECK(pair.client.take_received() == "the answer\n");
  for (const std::string& wire : {pair.to_server, pair.to_client}) {
    CHECK(wire.find("line") == std::string::npos);
    CHECK(wire.find("answer") == std::string::npos);
    CHECK(wire.find("job") == std::string::npos);
  }
  CHECK(pair.to_server.front() == tls_first_byte);

  pair.client.close();
  pair.carry();
  CHECK(pair.server.ended());
  CHECK(pair.server.failure() == TlsFailure::None);
}

TEST_CASE("where a machine has NIST's curves alone, the key exchange is one of theirs",
          "[secure][tls]") {
  const Context nist = context_of(secret_a);
  char groups[] = "P-256";
  REQUIRE(openssl().SSL_CTX_ctrl(nist->native(), SSL_CTRL_SET_GROUPS_LIST, 0, groups) == 1);
  Pair pair(context_of(secret_a), nist);
  pair.carry();
  INFO(pair.client.why() << pair.server.why());
  CHECK(pair.client.established());
  CHECK(pair.server.established());
}

TEST_CASE("a large text arrives whole", "[secure][tls]") {
  Pair pair(context_of(secret_a), context_of(secret_a));
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i);
  pair.carry();
  pair.client.send(text);
  pair.carry();
  CHECK(pair.server.take_received() == text);
}

TEST_CASE("another secret or another job is refused in one round trip, and says nothing",
          "[secure][tls]") {
  for (const Context& theirs : {context_of(secret_b), context_of(secret_a, "another")}) {
    Pair pair(theirs, context_of(secret_a));
    pair.client.send("what only the job may hear\n");
    pair.server.send("what only members may hear\n");
    CHECK(pair.carry() == 1);

    check_refused(pair.server, TlsFailure::WrongKey);
    check_refused(pair.client, TlsFailure::WrongKey);
    // A fatal alert: by illegal_parameter, or decrypt_error of a newer OpenSSL, a client knows that
    // it is a job's that refuses.
    REQUIRE(pair.to_client.size() == 7);
    CHECK(pair.to_client.substr(0, 6) == std::string("\x15\x03\x03\x00\x02\x02", 6));
    CHECK((pair.to_client[6] == 0x2f || pair.to_client[6] == 0x33));
    CHECK(pair.server.take_received().empty());
  }
}

TEST_CASE("the same secret makes new keys each time", "[secure][tls]") {
  Pair first(context_of(secret_a), context_of(secret_a));
  Pair second(context_of(secret_a), context_of(secret_a));
  first.carry();
  second.carry();
  REQUIRE(first.server.established());
  CHECK(first.to_server != second.to_server);
}

TEST_CASE("what a client sent is worth nothing when it is sent again", "[secure][tls]") {
  const Context context = context_of(secret_a);
  Pair recorded(context, context);
  recorded.client.send("{\"type\":\"hello\"}\n");
  recorded.carry();
  REQUIRE(recorded.server.established());

  TlsSession server(context, Role::Server);
  server.receive(recorded.to_server);
  INFO(server.why());
  CHECK_FALSE(server.established());
  CHECK(server.failure() == TlsFailure::Broken);
  CHECK(server.take_received().empty());

  // Of the hello alone the server cannot tell; but without the key nobody can go on from there.
  TlsSession patient(context, Role::Server);
  patient.receive(recorded.to_server.substr(0, recorded.to_server.size() / 2));
  CHECK_FALSE(patient.established());
  CHECK(patient.take_received().empty());
}

TEST_CASE("a client that hears itself ends", "[secure][tls]") {
  TlsSession client(context_of(secret_a), Role::Client);
  client.receive("");
  const std::string hello = client.take_to_send();
  REQUIRE_FALSE(hello.empty());
  client.receive(hello);
  check_refused(client, TlsFailure::Broken);
}

TEST_CASE("a server that hears itself ends", "[secure][tls]") {
  const Context context = context_of(secret_a);
  TlsSession client(context, Role::Client), server(context, Role::Server);
  client.receive("");
  server.receive(client.take_to_send());
  const std::string answer = server.take_to_send();
  REQUIRE_FALSE(answer.empty());
  server.receive(answer);
  CHECK_FALSE(server.established());
  CHECK(server.failure() == TlsFailure::Broken);
}

TEST_CASE("TLS without the key is refused, whatever its version", "[secure][tls]") {
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    Stranger stranger(/*server=*/false);
    stranger.limit_to(version);
    TlsSession server(context_of(secret_a), Role::Server);
    server.receive(stranger.turn());
    CHECK_FALSE(server.established());
    CHECK(server.failure() != TlsFailure::None);
    CHECK(server.take_to_send().size() < 16);
  }
}

TEST_CASE("a version that was changed on the way is refused", "[secure][tls]") {
  const Context context = context_of(secret_a);
  TlsSession client(context, Role::Client);
  client.receive("");
  const std::string hello = client.take_to_send();
  // supported_versions: 43, 3 bytes, a list of 2, 0x0304. It becomes 0x0303.
  const std::string extension("\x00\x2b\x00\x03\x02\x03\x04", 7);
  const std::size_t at = hello.find(extension);
  REQUIRE(at != std::string::npos);
  std::string older = hello;
  older[at + 6] = '\x03';

  TlsSession server(context, Role::Server);
  server.receive(older);
  CHECK_FALSE(server.established());
  CHECK(server.failure() != TlsFailure::None);
}

TEST_CASE("no byte of a hello can be changed", "[secure][tls]") {
  const Context context = context_of(secret_a);
  // Of a record's head, the second and third byte: a version that must be ignored (RFC 8446, 5.1).
  const auto means_nothing = [](std::size_t at) { return at == 1 || at == 2; };
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    TlsSession client(context, Role::Client), server(context, Role::Server);
    client.receive("");
    std::string hello = client.take_to_send();
    const std::size_t at = random() % hello.size();
    const auto flipped = static_cast<char>(1u << (random() % 8));
    if (means_nothing(at)) continue;
    hello[at] ^= flipped;
    server.receive(hello);
    client.receive(server.take_to_send());
    server.receive(client.take_to_send());
    INFO("byte " << at << " of " << hello.size());
    CHECK_FALSE((server.established() && client.established()));
    CHECK_FALSE(server.established());
  }
}

TEST_CASE("a TLS server that knows nothing of keys is no job with another secret",
          "[secure][tls]") {
  Stranger impostor(/*server=*/true);
  TlsSession client(context_of(secret_a), Role::Client);
  client.receive("");
  client.receive(impostor.turn(client.take_to_send()));
  check_refused(client, TlsFailure::Broken);
}

TEST_CASE("of all alerts that TLS has, two say that the server has another key", "[secure][tls]") {
  for (int alert = 1; alert <= 120; ++alert) {
    TlsSession client(context_of(secret_a), Role::Client);
    client.receive("");
    client.receive(std::string("\x15\x03\x03\x00\x02\x02", 6) + static_cast<char>(alert));
    INFO("alert " << alert);
    const bool is_of_key = alert == SSL_AD_ILLEGAL_PARAMETER || alert == SSL_AD_DECRYPT_ERROR;
    check_refused(client, is_of_key ? TlsFailure::WrongKey : TlsFailure::Broken);
  }
}

TEST_CASE("bytes that nobody sealed end an established connection", "[secure][tls]") {
  std::mt19937 random(11);
  for (int round = 0; round < 50; ++round) {
    Pair pair(context_of(secret_a), context_of(secret_a));
    pair.carry();
    REQUIRE(pair.server.established());
    std::string junk(1 + random() % 300, '\0');
    for (char& byte : junk) byte = static_cast<char>(random());
    junk.insert(0, std::string("\x17\x03\x03\x00\x40", 5));  // A record of 64 bytes.
    junk.resize(5 + 64, 'j');
    pair.server.receive(junk);
    CHECK(pair.server.failure() == TlsFailure::Broken);
    CHECK(pair.server.take_received().empty());
  }
}

TEST_CASE("plain lines, HTTP and a handshake without end are told apart", "[secure][tls]") {
  const Context context = context_of(secret_a);
  TlsSession client(context, Role::Client);
  client.receive("");
  client.receive("{\"type\":\"refused\"}\n");
  check_refused(client, TlsFailure::PlainPeer);

  TlsSession server(context, Role::Server);
  server.receive("GET / HTTP/1.1\r\n\r\n");
  check_refused(server, TlsFailure::Broken);

  TlsSession patient(context, Role::Server);
  const std::string record = std::string("\x16\x03\x01\x40\x00", 5) + std::string(16'384, '\x01');
  patient.receive(record);
  check_refused(patient, TlsFailure::Broken);
}

TEST_CASE("a hello that drips in byte by byte is one", "[secure][tls]") {
  const Context context = context_of(secret_a);
  TlsSession client(context, Role::Client), server(context, Role::Server);
  client.receive("");
  for (const char byte : client.take_to_send()) server.receive({&byte, 1});
  for (const char byte : server.take_to_send()) client.receive({&byte, 1});
  for (const char byte : client.take_to_send()) server.receive({&byte, 1});
  CHECK(client.established());
  CHECK(server.established());
}

TEST_CASE("a connection that stands keeps no key where a core file would hold it",
          "[secure][tls]") {
  const SecretBytes key = control_key(SecretBytes::copy_of(secret_a), "job");
  Pair pair(context_of(secret_a), context_of(secret_a));
  pair.carry();
  REQUIRE(pair.server.established());
  REQUIRE(pair.client.established());

  CHECK_FALSE(ddprun::testing::core_would_hold("self", key.text()));
  const std::string copy(key.text());  // That the search finds what is there.
  CHECK(ddprun::testing::core_would_hold("self", copy));
}
