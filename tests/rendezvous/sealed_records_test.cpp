// Records open where they were sealed to, in their order, whole, and nowhere else.
#include "rendezvous/sealed_records.h"

#include <algorithm>
#include <string>
#include <vector>

#include "rendezvous/key_agreement.h"
#include "rendezvous/secure/openssl_library.h"
#include "rendezvous/worker_key.h"
#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;

namespace {

using Bytes = std::vector<unsigned char>;

SecretBytes record_key(char letter) {
  return SecretBytes::copy_of(std::string(record_key_bytes, letter));
}

Bytes sealed(RecordSealer& sealer, const std::string& text) {
  const auto* data = reinterpret_cast<const unsigned char*>(text.data());
  // In two parts, as a frame's header and payload are.
  const RecordSealer::Part parts[2] = {{data, text.size() / 2},
                                       {data + text.size() / 2, text.size() - text.size() / 2}};
  Bytes record(record_size(text.size()));
  sealer.seal(parts, record.data());
  return record;
}

// What a record holds; nothing: it did not open.
std::string opened(RecordOpener& opener, const Bytes& record) {
  Bytes content(record_content_size(record.data()));
  if (!opener.open(record.data(), content.data())) return "";
  return {content.begin(), content.end()};
}

}  // namespace

TEST_CASE("records open in their order, whatever their sizes", "[sealed]") {
  RecordSealer sealer(record_key('a'));
  RecordOpener opener(record_key('a'));
  for (const std::size_t size : {std::size_t{1}, std::size_t{2}, std::size_t{57}, std::size_t{4096},
                                 record_bytes_max - 1, record_bytes_max}) {
    const std::string text(size, static_cast<char>('A' + size % 26));
    const Bytes record = sealed(sealer, text);
    CHECK(record_content_size(record.data()) == size);
    if (size >= 16) {
      CHECK(std::search(record.begin(), record.end(), text.begin(), text.begin() + 16) ==
            record.end());
    }
    CHECK(opened(opener, record) == text);
  }
}

TEST_CASE("equal contents do not look alike", "[sealed]") {
  RecordSealer sealer(record_key('a'));
  const Bytes one = sealed(sealer, "the same bytes"), two = sealed(sealer, "the same bytes");
  CHECK(one != two);
}

TEST_CASE("a record with one bit changed does not open, nor does what follows", "[sealed]") {
  const std::string text = "gradients of a layer";
  for (std::size_t bit = 0; bit < 8 * record_size(text.size()); ++bit) {
    RecordSealer sealer(record_key('a'));
    RecordOpener opener(record_key('a'));
    Bytes record = sealed(sealer, text);
    const Bytes next = sealed(sealer, text);
    record[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
    const std::size_t size = record_content_size(record.data());
    // A length that no longer fits is found by the tag, of bytes that come later.
    record.resize(std::max(record.size(), record_size(size)));
    INFO("bit " << bit);
    CHECK(opened(opener, record).empty());
    if (size != 0) CHECK(opened(opener, next).empty());
  }
}

TEST_CASE("a record that is repeated, left out, or of another key does not open", "[sealed]") {
  RecordSealer sealer(record_key('a'));
  const Bytes first = sealed(sealer, "first"), second = sealed(sealer, "second");
  RecordOpener repeated(record_key('a'));
  CHECK(opened(repeated, first) == "first");
  CHECK(opened(repeated, first).empty());
  CHECK(opened(repeated, second).empty());
  RecordOpener skipped(record_key('a'));
  CHECK(opened(skipped, second).empty());
  RecordOpener other(record_key('b'));
  CHECK(opened(other, first).empty());
}

TEST_CASE("both sides change the key at the same record", "[sealed]") {
  RecordSealer sealer(record_key('a'), 3);
  RecordOpener opener(record_key('a'), 3);
  RecordOpener late(record_key('a'), 4);
  std::vector<Bytes> records;
  for (int i = 0; i < 8; ++i) {
    records.push_back(sealed(sealer, "the same bytes"));
    INFO(i);
    CHECK(opened(opener, records.back()) == "the same bytes");
    CHECK(opened(late, records.back()).empty() == (i >= 3));
  }
  // The first of each key has the same nonce, and nothing else in common.
  CHECK(records[0] != records[3]);
  CHECK(records[3] != records[6]);
}

TEST_CASE("a length that no record has is none", "[sealed]") {
  const auto size_of = [](std::uint32_t size) {
    const unsigned char head[4] = {
        static_cast<unsigned char>(size), static_cast<unsigned char>(size >> 8),
        static_cast<unsigned char>(size >> 16), static_cast<unsigned char>(size >> 24)};
    return record_content_size(head);
  };
  CHECK(size_of(0) == 0);
  CHECK(size_of(record_bytes_max) == record_bytes_max);
  CHECK(size_of(record_bytes_max + 1) == 0);
  CHECK(size_of(0xFFFFFFFF) == 0);
}

TEST_CASE("two sides agree on what a third does not, and on a key for each use", "[sealed]") {
  const KeyAgreement one, two, third;
  CHECK(one.public_key().size() == public_key_bytes);
  CHECK(one.public_key() != two.public_key());
  const SecretBytes mine = one.agree(two.public_key()), theirs = two.agree(one.public_key());
  CHECK(mine.text() == theirs.text());
  CHECK(third.agree(one.public_key()).text() != mine.text());
  CHECK_THROWS_AS(one.agree("too short"), SecurityError);
  CHECK_THROWS_AS(one.agree(std::string(public_key_bytes, '\0')), SecurityError);
  CHECK(openssl().ERR_get_error() == 0);  // A connection of this thread would take it for its own.

  const WorkerKey key(record_key('a')), other(record_key('b'));
  CHECK(key.derive(mine, "to").text() == key.derive(theirs, "to").text());
  CHECK(key.derive(mine, "to").text() != key.derive(mine, "fro").text());
  CHECK(key.derive(mine, "to").text() != other.derive(mine, "to").text());
}
