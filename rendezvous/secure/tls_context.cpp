// OpenSSL's settings, and the two questions that it asks: which key do you offer, and which key has
// this name.
#include "rendezvous/secure/tls_context.h"

#include <cassert>
#include <cstring>

#include "rendezvous/secure/openssl_library.h"
#include "rendezvous/secure/psk.h"
#include "rendezvous/secure/security_error.h"

namespace ddprun::rendezvous {
namespace {

// TLS_AES_128_GCM_SHA256: the one that every TLS 1.3 has. A key belongs to the hash of its cipher
// suite, so there is one hash and nothing to negotiate.
constexpr const char* cipher_suite = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char cipher_suite_number[] = {0x13, 0x01};

// An external key is a session that never was. Whoever asked owns it.
SSL_SESSION* key_session(SSL* connection) {
  const OpenSsl& ssl = openssl();
  const auto* context =
      static_cast<const TlsContext*>(ssl.SSL_CTX_get_ex_data(ssl.SSL_get_SSL_CTX(connection), 0));
  const SSL_CIPHER* cipher = ssl.SSL_CIPHER_find(connection, cipher_suite_number);
  SSL_SESSION* session = ssl.SSL_SESSION_new();
  if (cipher == nullptr || session == nullptr ||
      ssl.SSL_SESSION_set1_master_key(session, context->key().data(), context->key().size()) != 1 ||
      ssl.SSL_SESSION_set_cipher(session, cipher) != 1 ||
      ssl.SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
    ssl.SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

// For the client.
int offer_key(SSL* connection, const EVP_MD*, const unsigned char** identity, std::size_t* size,
              SSL_SESSION** session) {
  *identity = reinterpret_cast<const unsigned char*>(psk_identity.data());
  *size = psk_identity.size();
  *session = key_session(connection);
  return *session != nullptr ? 1 : 0;
}

// For the server. An unknown name is no error but a client without a key, which then fails, since
// there is no certificate either.
int find_key(SSL* connection, const unsigned char* identity, std::size_t size,
             SSL_SESSION** session) {
  const bool known =
      size == psk_identity.size() && std::memcmp(identity, psk_identity.data(), size) == 0;
  *session = known ? key_session(connection) : nullptr;
  return 1;
}

}  // namespace

TlsContext::TlsContext(SecretBytes key) : key_(std::move(key)) {
  assert(key_.size() == key_bytes);
  const OpenSsl& ssl = openssl();
  context_ = ssl.SSL_CTX_new(ssl.TLS_method());
  char groups[] = "X25519:P-256";  // The second for where only NIST's curves are allowed.
  if (context_ == nullptr ||
      ssl.SSL_CTX_ctrl(context_, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, nullptr) != 1 ||
      ssl.SSL_CTX_ctrl(context_, SSL_CTRL_SET_MAX_PROTO_VERSION, TLS1_3_VERSION, nullptr) != 1 ||
      ssl.SSL_CTX_set_ciphersuites(context_, cipher_suite) != 1 ||
      ssl.SSL_CTX_ctrl(context_, SSL_CTRL_SET_GROUPS_LIST, 0, groups) != 1 ||
      ssl.SSL_CTX_set_num_tickets(context_, 0) != 1 ||
      ssl.SSL_CTX_set_ex_data(context_, 0, this) != 1) {
    ssl.SSL_CTX_free(context_);
    throw SecurityError("cannot prepare TLS 1.3: this OpenSSL does not have what it needs");
  }
  ssl.SSL_CTX_set_options(context_, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION |
                                        SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  ssl.SSL_CTX_ctrl(context_, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, nullptr);
  ssl.SSL_CTX_set_psk_use_session_callback(context_, offer_key);
  ssl.SSL_CTX_set_psk_find_session_callback(context_, find_key);
}

TlsContext::~TlsContext() { openssl().SSL_CTX_free(context_); }

}  // namespace ddprun::rendezvous
