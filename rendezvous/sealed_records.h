// A stream of bytes as records that only who has the key can read, or make (AES-256-GCM).
//
//   record := length, 4 bytes, little-endian | so many sealed bytes | tag, 16 bytes
//
// The nonce is the record's number, which nobody sends: a record that was changed, repeated, left
// out or moved does not open. One key serves one direction of one connection. After so many records
// both sides derive the next key from it, long before AES-GCM's bounds are near (RFC 8446, section
// 5.5), so that a connection may last for as long as a training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "rendezvous/secure/secret_bytes.h"
#include "rendezvous/secure/security_error.h"

struct evp_cipher_ctx_st;  // OpenSSL's.

namespace ddprun::rendezvous {

constexpr std::size_t record_head_bytes = 4;
constexpr std::size_t record_tag_bytes = 16;
// Of what a record holds: what a core's cache holds twice, while the cost of a system call is small
// beside it.
constexpr std::size_t record_bytes_max = 64u << 10;
constexpr std::size_t record_key_bytes = 32;
constexpr std::uint64_t records_per_key_max = 1u << 20;  // 64 GiB.

constexpr std::size_t record_size(std::size_t bytes) {
  return record_head_bytes + bytes + record_tag_bytes;
}

// How much the record that begins with these record_head_bytes holds; 0: none does so.
std::size_t record_content_size(const unsigned char* head);

// One direction's key and place; what sealing and opening have in common.
class RecordKey {
 public:
  RecordKey(SecretBytes key, bool seals, std::uint64_t records_per_key);
  RecordKey(RecordKey&& other) noexcept;
  RecordKey& operator=(RecordKey&&) = delete;
  ~RecordKey();

  // The next record's nonce, and the key that is its turn. False: OpenSSL failed.
  bool begin(const unsigned char* head);
  evp_cipher_ctx_st* context() const { return context_; }

 private:
  void take_key();

  SecretBytes key_;
  bool seals_;
  std::uint64_t records_per_key_;
  std::uint64_t records_ = 0;  // Of this key.
  evp_cipher_ctx_st* context_;
};

class RecordSealer {
 public:
  explicit RecordSealer(SecretBytes key, std::uint64_t records_per_key = records_per_key_max)
      : key_(std::move(key), true, records_per_key) {}

  using Part = std::span<const unsigned char>;
  // Makes one record of all parts, 1 to record_bytes_max bytes together; `record` has room for
  // record_size() of them. Throws SecurityError.
  void seal(std::span<const Part> parts, unsigned char* record);

 private:
  RecordKey key_;
};

class RecordOpener {
 public:
  explicit RecordOpener(SecretBytes key, std::uint64_t records_per_key = records_per_key_max)
      : key_(std::move(key), false, records_per_key) {}

  // `record` is whole; `content` has room for record_content_size() of it and may be where its
  // sealed bytes are. False: it is not the record that comes next, and nothing that comes later
  // opens either; what then lies in `content` is nobody's.
  bool open(const unsigned char* record, unsigned char* content);

 private:
  RecordKey key_;
  bool broken_ = false;
};

}  // namespace ddprun::rendezvous
