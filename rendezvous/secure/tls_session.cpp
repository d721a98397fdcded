// OpenSSL between two buffers in memory, and what its many errors mean here.
#include "rendezvous/secure/tls_session.h"

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <utility>

#include "rendezvous/first_byte.h"
#include "rendezvous/secure/openssl_library.h"
#include "rendezvous/secure/psk.h"

namespace ddprun::rendezvous {
namespace {

// OpenSSL: 1000 + number of an alert that the other side sent.
constexpr int alert_reasons = 1000;
// What OpenSSL's server, and so ours, says to a proof that was made with another key: 1.1.1
// and 3.0, and later ones (seen of 3.5) as RFC 8446 has it (4.2.11).
constexpr int wrong_key_alert = SSL_AD_ILLEGAL_PARAMETER;
constexpr int wrong_key_alert_later = SSL_AD_DECRYPT_ERROR;
constexpr unsigned long openssl_3 = 0x3'00'00'00'0;

// Why TLS failed; 0: `code` is of another part of OpenSSL, or there is none. In 1.1.1 the number of
// a function stands between library and reason.
int tls_reason(unsigned long code) {
  const bool with_function = openssl().OpenSSL_version_num() < openssl_3;
  const unsigned long library = with_function ? code >> 24 & 0xff : ERR_GET_LIB(code);
  const unsigned long reason = with_function ? code & 0xfff : ERR_GET_REASON(code);
  return library == ERR_LIB_SSL ? static_cast<int>(reason) : 0;
}

}  // namespace

TlsSession::TlsSession(std::shared_ptr<const TlsContext> context, Role role)
    : context_(std::move(context)), ssl_(openssl().SSL_new(context_->native())) {
  const OpenSsl& ssl = openssl();
  from_wire_ = ssl.BIO_new(ssl.BIO_s_mem());
  to_wire_ = ssl.BIO_new(ssl.BIO_s_mem());
  if (ssl_ == nullptr || from_wire_ == nullptr || to_wire_ == nullptr) throw std::bad_alloc();
  ssl.SSL_set_bio(ssl_, from_wire_, to_wire_);
  if (role == Role::Server) {
    ssl.SSL_set_accept_state(ssl_);
    return;
  }
  ssl.SSL_set_connect_state(ssl_);
  // A server that does not know the key would fall back to a certificate, which by default nobody
  // looks at. Verified against no authority at all, every certificate fails.
  ssl.SSL_set_verify(ssl_, SSL_VERIFY_PEER, nullptr);
}

TlsSession::~TlsSession() { openssl().SSL_free(ssl_); }

void TlsSession::receive(std::string_view wire) {
  if (failure_ != TlsFailure::None) return;
  if (!established_) {
    if (handshake_bytes_ == 0 && !wire.empty() && wire.front() == plain_first_byte) {
      return fail(TlsFailure::PlainPeer, "it does not speak TLS");
    }
    handshake_bytes_ += wire.size();
    if (handshake_bytes_ > handshake_bytes_max) {
      return fail(TlsFailure::Broken, "its TLS handshake has no end");
    }
  }
  while (!wire.empty()) {
    const auto size =
        static_cast<int>(std::min<std::size_t>(wire.size(), std::numeric_limits<int>::max()));
    if (openssl().BIO_write(from_wire_, wire.data(), size) != size) throw std::bad_alloc();
    wire.remove_prefix(static_cast<std::size_t>(size));
  }
  if (!established_) shake_hands();
  if (established_) unseal();
}

void TlsSession::shake_hands() {
  const OpenSsl& ssl = openssl();
  ssl.ERR_clear_error();
  const int result = ssl.SSL_do_handshake(ssl_);
  if (result != 1) {
    if (ssl.SSL_get_error(ssl_, result) != SSL_ERROR_WANT_READ) fail_handshake();
    return;
  }
  // What all rests on is asked once more: OpenSSL calls a connection that a key began "reused".
  if (ssl.SSL_session_reused(ssl_) != 1 || ssl.SSL_version(ssl_) != TLS1_3_VERSION) {
    return fail(TlsFailure::WrongKey, "it proved no key");
  }
  // The connection has keys of its own by now. The job's must not lie where a core file finds it.
  const std::array<unsigned char, key_bytes> zeros{};
  ssl.SSL_SESSION_set1_master_key(ssl.SSL_get_session(ssl_), zeros.data(), zeros.size());
  established_ = true;
  if (!unsent_.empty()) send(std::exchange(unsent_, {}));
}

void TlsSession::unseal() {
  const OpenSsl& ssl = openssl();
  std::array<char, 8192> chunk;
  while (failure_ == TlsFailure::None && !ended_) {
    ssl.ERR_clear_error();
    const int size = ssl.SSL_read(ssl_, chunk.data(), chunk.size());
    if (size > 0) {
      received_.append(chunk.data(), static_cast<std::size_t>(size));
      continue;
    }
    const int error = ssl.SSL_get_error(ssl_, size);
    if (error == SSL_ERROR_WANT_READ) return;
    ended_ = error == SSL_ERROR_ZERO_RETURN;
    if (!ended_) fail(TlsFailure::Broken, "it sent bytes that were not sealed with its key");
  }
}

void TlsSession::send(std::string_view text) {
  if (failure_ != TlsFailure::None || text.empty()) return;
  if (!established_) {
    unsent_ += text;
    return;
  }
  // A buffer in memory takes all of it.
  openssl().ERR_clear_error();
  if (openssl().SSL_write(ssl_, text.data(), static_cast<int>(text.size())) <= 0) {
    fail(TlsFailure::Broken, "TLS could not seal what was to be sent");
  }
}

void TlsSession::close() {
  if (!established_ || failure_ != TlsFailure::None) return;
  openssl().ERR_clear_error();
  openssl().SSL_shutdown(ssl_);  // Our direction alone; 0, not yet the other's, is no error.
}

std::string TlsSession::take_to_send() {
  const OpenSsl& ssl = openssl();
  std::string wire(ssl.BIO_ctrl_pending(to_wire_), '\0');
  if (!wire.empty()) ssl.BIO_read(to_wire_, wire.data(), static_cast<int>(wire.size()));
  return wire;
}

std::string TlsSession::take_received() { return std::exchange(received_, {}); }

void TlsSession::fail(TlsFailure failure, std::string why) {
  failure_ = failure;
  why_ = std::move(why);
  received_.clear();
}

void TlsSession::fail_handshake() {
  // Parts of OpenSSL that TLS calls, whose reasons have the same numbers, may have failed before
  // it.
  unsigned long code = openssl().ERR_get_error();
  while (code != 0 && tls_reason(code) == 0) code = openssl().ERR_get_error();
  const int reason = tls_reason(code);
  switch (reason) {
    // Server: its proof was made with another key, or it offered none that we know.
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_NO_SHARED_CIPHER:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_MISSING_SIGALGS_EXTENSION:
      return fail(TlsFailure::WrongKey, "it does not have the secret of this job");
    case alert_reasons + wrong_key_alert:
    case alert_reasons + wrong_key_alert_later:
      return fail(TlsFailure::WrongKey, "it refused the secret of this node");
    // Client: no ddprun has a certificate.
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
      return fail(TlsFailure::Broken, "it speaks TLS, but is no ddprun");
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
      return fail(TlsFailure::Broken, "it does not speak TLS");
    case SSL_R_UNSUPPORTED_PROTOCOL:
      return fail(TlsFailure::Broken, "it speaks an older TLS than 1.3");
    default:
      break;
  }
  if (reason > alert_reasons) {
    return fail(TlsFailure::Broken, "it speaks TLS, but is no ddprun (it sent alert " +
                                        std::to_string(reason - alert_reasons) + ")");
  }
  fail(TlsFailure::Broken, "it does not speak TLS 1.3 as ddprun does (OpenSSL's reason " +
                               std::to_string(reason) + ")");
}

}  // namespace ddprun::rendezvous
