// Keys against the vectors of RFC 5869, and that each use and each job has its own.
#include "rendezvous/secure/psk.h"

#include <string>

#include "tests/testing/catch.h"
#include "tests/testing/core_files.h"

using namespace ddprun::rendezvous;

namespace {

std::string bytes_of(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::string hex_of(const SecretBytes& bytes) {
  std::string hex;
  for (const unsigned char byte : bytes.bytes()) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

std::string hkdf(const std::string& secret, const std::string& salt, const std::string& info,
                 std::size_t size) {
  const SecretBytes key = SecretBytes::copy_of(bytes_of(secret));
  return hex_of(hkdf_sha256(key.bytes(), bytes_of(salt), bytes_of(info), size));
}

// The bytes from .. to-1, in hexadecimal.
std::string counted_up(int from, int to) {
  std::string bytes;
  for (int byte = from; byte < to; ++byte) bytes += static_cast<char>(byte);
  return hex_of(SecretBytes::copy_of(bytes));
}

}  // namespace

TEST_CASE("keys are derived as RFC 5869 says, by its vectors for SHA-256", "[secure][psk]") {
  const std::string twenty_two(44, 'b');
  std::string secret;
  for (char letter : twenty_two) secret += letter == 'b' ? (secret.size() % 2 ? 'b' : '0') : letter;

  CHECK(hkdf(secret, counted_up(0, 13), counted_up(0xf0, 0xfa), 42) ==
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");
  CHECK(hkdf(counted_up(0, 0x50), counted_up(0x60, 0xb0), counted_up(0xb0, 0x100), 82) ==
        "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c"
        "59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71"
        "cc30c58179ec3e87c14c01d5c1f3434f1d87");
  CHECK(hkdf(secret, "", "", 42) ==
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8");
}

TEST_CASE("each use, each job and each secret has a key of its own", "[secure][psk]") {
  const SecretBytes secret = SecretBytes::copy_of(std::string(64, 'a'));
  const SecretBytes other = SecretBytes::copy_of(std::string(64, 'b'));
  const std::string key = hex_of(control_key(secret, "job"));

  CHECK(key.size() == 2 * key_bytes);
  CHECK(hex_of(control_key(secret, "job")) == key);
  CHECK(hex_of(control_key(secret, "another")) != key);
  CHECK(hex_of(control_key(other, "job")) != key);
  CHECK(hex_of(worker_key(secret, "job")) != key);
}

// Computed by Python's hmac. A change of the labels would keep nodes of two versions apart.
TEST_CASE("the keys of a job are those of every version", "[secure][psk]") {
  const SecretBytes secret = SecretBytes::copy_of(std::string(64, 'a'));

  CHECK(hex_of(control_key(secret, "job")) ==
        "25ab73d173eb659e3ee117e683e65c65ae8b4eebc81c79f5fac6af8451ef891d");
  CHECK(hex_of(worker_key(secret, "job")) ==
        "5f64278ad2017912d8ddc8ab6f9ff733ed8a9f20520554eb653ff7461df8c2ef");
}

TEST_CASE("a part of a secret is kept", "[secure][psk]") {
  SecretBytes secret = SecretBytes::copy_of("0123456789");

  secret.keep(2, 7);
  CHECK(secret.text() == "23456");
  secret.keep(0, 0);
  CHECK(secret.size() == 0);
}

TEST_CASE("a secret's pages are left out of core files", "[secure][psk]") {
  const SecretBytes secret = SecretBytes::copy_of("not for a core file");
  CHECK(ddprun::testing::is_left_out_of_cores(secret.data()));
  int on_the_stack = 0;
  CHECK_FALSE(ddprun::testing::is_left_out_of_cores(&on_the_stack));
}
