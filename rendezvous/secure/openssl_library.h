// OpenSSL's functions, looked up when the first of them is needed.
//
// Linked, its two libraries would cost every start of ddprun about a millisecond, and a job that no
// other host can join needs none of it. The machine's OpenSSL 3 or 4 serves, and the 1.1.1 of RHEL
// 8 and Ubuntu 20.04, since only functions are called that all of them have, with the numbers that
// all give them. Where it is the one that our copy was made from, the copy is opened instead, which
// takes half the time (openssl_copy.h).
#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/ssl.h>

#include <cstdint>
#include <memory>

namespace ddprun::rendezvous {

// Every function that is called, each under its own name.
#define DDPRUN_OPENSSL_FUNCTIONS(F)        \
  F(BIO_ctrl_pending)                      \
  F(BIO_new)                               \
  F(BIO_read)                              \
  F(BIO_s_mem)                             \
  F(BIO_write)                             \
  F(ERR_clear_error)                       \
  F(ERR_get_error)                         \
  F(EVP_CIPHER_CTX_ctrl)                   \
  F(EVP_CIPHER_CTX_free)                   \
  F(EVP_CIPHER_CTX_new)                    \
  F(EVP_CipherFinal_ex)                    \
  F(EVP_CipherInit_ex)                     \
  F(EVP_CipherUpdate)                      \
  F(EVP_PKEY_CTX_ctrl)                     \
  F(EVP_PKEY_CTX_free)                     \
  F(EVP_PKEY_CTX_new)                      \
  F(EVP_PKEY_CTX_new_id)                   \
  F(EVP_PKEY_derive)                       \
  F(EVP_PKEY_derive_init)                  \
  F(EVP_PKEY_derive_set_peer)              \
  F(EVP_PKEY_free)                         \
  F(EVP_PKEY_get_raw_public_key)           \
  F(EVP_PKEY_keygen)                       \
  F(EVP_PKEY_keygen_init)                  \
  F(EVP_PKEY_new_raw_public_key)           \
  F(EVP_aes_256_gcm)                       \
  F(EVP_sha256)                            \
  F(HMAC)                                  \
  F(OPENSSL_init_crypto)                   \
  F(OPENSSL_init_ssl)                      \
  F(OpenSSL_version_num)                   \
  F(SSL_CIPHER_find)                       \
  F(SSL_CTX_ctrl)                          \
  F(SSL_CTX_free)                          \
  F(SSL_CTX_get_ex_data)                   \
  F(SSL_CTX_new)                           \
  F(SSL_CTX_set_ciphersuites)              \
  F(SSL_CTX_set_ex_data)                   \
  F(SSL_CTX_set_num_tickets)               \
  F(SSL_CTX_set_options)                   \
  F(SSL_CTX_set_psk_find_session_callback) \
  F(SSL_CTX_set_psk_use_session_callback)  \
  F(SSL_SESSION_free)                      \
  F(SSL_SESSION_new)                       \
  F(SSL_SESSION_set1_master_key)           \
  F(SSL_SESSION_set_cipher)                \
  F(SSL_SESSION_set_protocol_version)      \
  F(SSL_do_handshake)                      \
  F(SSL_free)                              \
  F(SSL_get_SSL_CTX)                       \
  F(SSL_get_error)                         \
  F(SSL_get_session)                       \
  F(SSL_new)                               \
  F(SSL_read)                              \
  F(SSL_session_reused)                    \
  F(SSL_set_accept_state)                  \
  F(SSL_set_bio)                           \
  F(SSL_set_connect_state)                 \
  F(SSL_set_verify)                        \
  F(SSL_shutdown)                          \
  F(SSL_version)                           \
  F(SSL_write)                             \
  F(TLS_method)

struct OpenSsl {
#define DDPRUN_OPENSSL_MEMBER(name) decltype(&::name) name = nullptr;
  DDPRUN_OPENSSL_FUNCTIONS(DDPRUN_OPENSSL_MEMBER)
#undef DDPRUN_OPENSSL_MEMBER
};

// Without the machine's openssl.cnf: what a job's connections are like is decided here alone. No
// handlers at exit: the agent may end while a guard or a look-up of names still runs. Names of
// ciphers and words for errors cost 0.6 of 3 ms and serve nobody here; that they are not wanted
// must be said before the second line, which would load them.
inline void start_openssl(const OpenSsl& functions) {
  constexpr std::uint64_t without =
      OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT | OPENSSL_INIT_NO_LOAD_CRYPTO_STRINGS;
  functions.OPENSSL_init_crypto(
      without | OPENSSL_INIT_NO_ADD_ALL_CIPHERS | OPENSSL_INIT_NO_ADD_ALL_DIGESTS, nullptr);
  functions.OPENSSL_init_ssl(without | OPENSSL_INIT_NO_LOAD_SSL_STRINGS, nullptr);
}

using KeyContext = std::unique_ptr<EVP_PKEY_CTX, void (*)(EVP_PKEY_CTX*)>;

// Opened on the first call. Throws SecurityError where the machine has no OpenSSL.
const OpenSsl& openssl();

}  // namespace ddprun::rendezvous
