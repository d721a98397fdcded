// Two ends of a connection, with the test in the middle: it carries the bytes, keeps, changes and
// repeats them.
#include "rendezvous/secure/tls_session.h"

#include <dlfcn.h>
#include <openssl/x509.h>

#include <random>
#include <utility>

#include "rendezvous/first_byte.h"
#include "rendezvous/secure/openssl_library.h"
#include "rendezvous/secure/psk.h"
#include "tests/testing/catch.h"
#include "tests/testing/check_contains.h"
#include "tests/testing/core_files.h"

using namespace ddprun::rendezvous;
using ddprun::testing::check_contains;

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

// A function's name and type.
#define DDPRUN_OF(name) \
  std::pair<const char*, decltype(::name)*> { #name, nullptr }

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

// Of the machine's OpenSSL, which can what ddprun's copy of it leaves out. A certificate that it
// has signed itself.
class CertifiedServer {
 private:
  template <typename Function, typename... Arguments>
  auto call(std::pair<const char*, Function*> function, Arguments... arguments) {
    auto* found = reinterpret_cast<Function*>(::dlsym(library_, function.first));
    REQUIRE(found != nullptr);
    return found(arguments...);
  }

 public:
  explicit CertifiedServer(void* library) : library_(library) {
    EVP_PKEY* key = call(DDPRUN_OF(EVP_PKEY_Q_keygen), nullptr, nullptr, "EC", "P-256");
    X509* certificate = call(DDPRUN_OF(X509_new));
    call(DDPRUN_OF(X509_gmtime_adj), call(DDPRUN_OF(X509_getm_notBefore), certificate), 0L);
    call(DDPRUN_OF(X509_gmtime_adj), call(DDPRUN_OF(X509_getm_notAfter), certificate), 3'600L);
    call(DDPRUN_OF(X509_set_pubkey), certificate, key);
    REQUIRE(call(DDPRUN_OF(X509_sign), certificate, key, call(DDPRUN_OF(EVP_sha256))) > 0);
    context_ = call(DDPRUN_OF(SSL_CTX_new), call(DDPRUN_OF(TLS_method)));
    REQUIRE(call(DDPRUN_OF(SSL_CTX_use_certificate), context_, certificate) == 1);
    REQUIRE(call(DDPRUN_OF(SSL_CTX_use_PrivateKey), context_, key) == 1);
    call(DDPRUN_OF(X509_free), certificate);
    call(DDPRUN_OF(EVP_PKEY_free), key);
    session_ = call(DDPRUN_OF(SSL_new), context_);
    in_ = call(DDPRUN_OF(BIO_new), call(DDPRUN_OF(BIO_s_mem)));
    out_ = call(DDPRUN_OF(BIO_new), call(DDPRUN_OF(BIO_s_mem)));
    call(DDPRUN_OF(SSL_set_bio), session_, in_, out_);
    call(DDPRUN_OF(SSL_set_accept_state), session_);
  }
  ~CertifiedServer() {
    call(DDPRUN_OF(SSL_free), session_);
    call(DDPRUN_OF(SSL_CTX_free), context_);
  }
  CertifiedServer(const CertifiedServer&) = delete;

  std::string turn(const std::string& wire) {
    call(DDPRUN_OF(BIO_write), in_, wire.data(), static_cast<int>(wire.size()));
    call(DDPRUN_OF(SSL_do_handshake), session_);
    call(DDPRUN_OF(ERR_clear_error));
    std::string answer(call(DDPRUN_OF(BIO_ctrl_pending), out_), '\0');
    if (!answer.empty()) {
      call(DDPRUN_OF(BIO_read), out_, answer.data(), static_cast<int>(answer.size()));
    }
    return answer;
  }

 private:
  void* library_;
  SSL_CTX* context_;
  SSL* session_;
  BIO *in_, *out_;
};

}  // namespace

TEST_CASE("two with the same secret talk, and the wire holds neither words nor key",
          "[secure][tls]") {
  Pair pair(context_of(secret_a), context_of(secret_a));
  pair.client.send("a line before ");
  pair.client.send("the handshake is done\n");
  pair.carry();

  REQUIRE(pair.client.established());
  REQUIRE(pair.server.established());
  CHECK(pair.server.take_received() == "a line before the handshake is done\n");
  pair.server.send("the answer\n");
  pair.server.send("");
  pair.carry();
  CHECK(pair.client.take_received() == "the answer\n");
  CHECK(pair.server.failure() == TlsFailure::None);
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

    // It stays so, whatever else comes and goes.
    pair.server.send("what only members may hear\n");
    TlsSession member(context_of(secret_a), Role::Client);
    member.receive("");
    pair.server.receive(member.take_to_send());
    check_refused(pair.server, TlsFailure::WrongKey);
    CHECK(pair.server.take_to_send().empty());
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
    CHECK(server.failure() ==
          (version == TLS1_3_VERSION ? TlsFailure::WrongKey : TlsFailure::Broken));
    if (version == TLS1_2_VERSION) CHECK(server.why() == "it speaks an older TLS than 1.3");
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

TEST_CASE("a TLS server with a certificate is no ddprun", "[secure][tls]") {
  void* library = ::dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) DDPRUN_SKIP("this machine has no libssl.so.3 to make a certificate with");
  CertifiedServer impostor(library);
  TlsSession client(context_of(secret_a), Role::Client);
  client.receive("");
  for (std::string wire = client.take_to_send(); !wire.empty(); wire = client.take_to_send()) {
    client.receive(impostor.turn(wire));
  }
  check_refused(client, TlsFailure::Broken);
  CHECK(client.why() == "it speaks TLS, but is no ddprun");
}

TEST_CASE("of all alerts that TLS has, two say that the server has another key", "[secure][tls]") {
  for (int alert = 1; alert <= 120; ++alert) {
    TlsSession client(context_of(secret_a), Role::Client);
    client.receive("");
    client.receive(std::string("\x15\x03\x03\x00\x02\x02", 6) + static_cast<char>(alert));
    INFO("alert " << alert);
    const bool is_of_key = alert == SSL_AD_ILLEGAL_PARAMETER || alert == SSL_AD_DECRYPT_ERROR;
    check_refused(client, is_of_key ? TlsFailure::WrongKey : TlsFailure::Broken);
    if (!is_of_key) check_contains(client.why(), "it sent alert " + std::to_string(alert) + ")");
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

TEST_CASE("what was said before bytes that nobody sealed is not taken", "[secure][tls]") {
  Pair pair(context_of(secret_a), context_of(secret_a));
  pair.carry();
  REQUIRE(pair.server.established());
  pair.client.send("half of a line");

  pair.server.receive(pair.client.take_to_send() + std::string("\x17\x03\x03\x00\x40", 5) +
                      std::string(64, 'j'));

  CHECK(pair.server.failure() == TlsFailure::Broken);
  CHECK(pair.server.take_received().empty());
  const std::string why = pair.server.why();
  pair.server.send("what only members may hear\n");
  CHECK(pair.server.why() == why);
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
  CHECK(server.why() == "it does not speak TLS");

  TlsSession shell(context, Role::Client);
  shell.receive("");
  shell.receive("SSH-2.0-OpenSSH_9.2\r\n");
  check_refused(shell, TlsFailure::Broken);
  CHECK(shell.why() == "it does not speak TLS");

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
