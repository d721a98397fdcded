// One context of OpenSSL's for each direction: setting only the nonce anew costs a tenth of what
// setting the key costs.
#include "rendezvous/sealed_records.h"

#include <array>
#include <cassert>
#include <cstring>
#include <utility>

#include "rendezvous/secure/openssl_library.h"
#include "rendezvous/secure/psk.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t nonce_bytes = 12;

}  // namespace

std::size_t record_content_size(const unsigned char* head) {
  std::uint32_t size = 0;
  for (int byte = 3; byte >= 0; --byte) size = size << 8 | head[byte];
  return size <= record_bytes_max ? size : 0;
}

RecordKey::RecordKey(SecretBytes key, bool seals, std::uint64_t records_per_key)
    : key_(std::move(key)),
      seals_(seals),
      records_per_key_(records_per_key),
      context_(openssl().EVP_CIPHER_CTX_new()) {
  assert(key_.size() == record_key_bytes && records_per_key > 0);
  try {
    take_key();
  } catch (...) {
    openssl().EVP_CIPHER_CTX_free(context_);
    throw;
  }
}

RecordKey::RecordKey(RecordKey&& other) noexcept
    : key_(std::move(other.key_)),
      seals_(other.seals_),
      records_per_key_(other.records_per_key_),
      records_(other.records_),
      context_(std::exchange(other.context_, nullptr)) {}

RecordKey::~RecordKey() {
  if (context_ != nullptr) openssl().EVP_CIPHER_CTX_free(context_);  // It overwrites its key.
}

void RecordKey::take_key() {
  const OpenSsl& ssl = openssl();
  if (context_ == nullptr || ssl.EVP_CipherInit_ex(context_, ssl.EVP_aes_256_gcm(), nullptr,
                                                   key_.data(), nullptr, seals_ ? 1 : 0) != 1) {
    throw SecurityError("cannot seal connections: this OpenSSL has no AES-256-GCM");
  }
}

bool RecordKey::begin(const unsigned char* head) {
  if (records_ == records_per_key_) {
    key_ = hkdf_sha256(key_.bytes(), "ddprun records", "next key", record_key_bytes);
    records_ = 0;
    take_key();
  }
  // Eight bytes of a number that never comes twice under a key; the rest may be the same for all.
  std::array<unsigned char, nonce_bytes> nonce{};
  for (int byte = 0; byte < 8; ++byte) {
    nonce[static_cast<std::size_t>(byte)] = static_cast<unsigned char>(records_ >> (8 * byte));
  }
  ++records_;
  int ignored = 0;
  // The length goes in plain, since a stream must be cut into records before they are opened; under
  // the tag it cannot be changed.
  return openssl().EVP_CipherInit_ex(context_, nullptr, nullptr, nullptr, nonce.data(), -1) == 1 &&
         openssl().EVP_CipherUpdate(context_, nullptr, &ignored, head, record_head_bytes) == 1;
}

void RecordSealer::seal(std::span<const Part> parts, unsigned char* record) {
  const OpenSsl& ssl = openssl();
  std::size_t total = 0;
  for (const Part& part : parts) total += part.size();
  assert(total > 0 && total <= record_bytes_max);
  for (int byte = 0; byte < 4; ++byte) {
    record[byte] = static_cast<unsigned char>(total >> (8 * byte));
  }
  bool good = key_.begin(record);
  unsigned char* to = record + record_head_bytes;
  int size = 0;
  for (const Part& part : parts) {
    if (part.empty()) continue;
    good = good && ssl.EVP_CipherUpdate(key_.context(), to, &size, part.data(),
                                        static_cast<int>(part.size())) == 1;
    to += part.size();
  }
  good = good && ssl.EVP_CipherFinal_ex(key_.context(), to, &size) == 1 &&
         ssl.EVP_CIPHER_CTX_ctrl(key_.context(), EVP_CTRL_AEAD_GET_TAG, record_tag_bytes, to) == 1;
  if (!good) throw SecurityError("cannot seal what was to be sent: OpenSSL's AES-256-GCM failed");
}

bool RecordOpener::open(const unsigned char* record, unsigned char* content) {
  const OpenSsl& ssl = openssl();
  const std::size_t size = record_content_size(record);
  if (broken_ || size == 0) return false;
  const unsigned char* sealed = record + record_head_bytes;
  // Copied first: `content` may lie where the record does.
  std::array<unsigned char, record_tag_bytes> tag;
  std::memcpy(tag.data(), sealed + size, tag.size());
  int got = 0;
  broken_ =
      !(key_.begin(record) &&
        ssl.EVP_CipherUpdate(key_.context(), content, &got, sealed, static_cast<int>(size)) == 1 &&
        ssl.EVP_CIPHER_CTX_ctrl(key_.context(), EVP_CTRL_AEAD_SET_TAG, record_tag_bytes,
                                tag.data()) == 1 &&
        ssl.EVP_CipherFinal_ex(key_.context(), content + size, &got) == 1);
  // OpenSSL keeps errors for each thread, and whoever asks it next would take this one for his own.
  if (broken_) ssl.ERR_clear_error();
  return !broken_;
}

}  // namespace ddprun::rendezvous
