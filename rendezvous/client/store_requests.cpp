// Bytes and words of requests apart from the connection, so that each is written once however often
// it is sent.
#include "rendezvous/client/store_requests.h"

#include <algorithm>

namespace ddprun::rendezvous {

void put_key(std::string& out, std::string_view key) {
  put_number<std::uint64_t>(out, key.size() + 1);
  out += '/';
  out += key;
}

std::string request(StoreOp op) { return std::string(1, static_cast<char>(op)); }

std::string request(StoreOp op, std::string_view key) {
  std::string bytes = request(op);
  put_key(bytes, key);
  return bytes;
}

std::string request(StoreOp op, std::span<const std::string> keys) {
  std::string bytes = request(op);
  put_number<std::uint64_t>(bytes, keys.size());
  for (const std::string& key : keys) put_key(bytes, key);
  return bytes;
}

std::string confirm_request() {
  std::string bytes = request(StoreOp::Ping);
  put_number(bytes, confirm_nonce);
  return bytes;
}

std::string call_text(const char* name, std::span<const std::string> keys) {
  std::string text = std::string(name) + "(";
  const std::size_t shown = std::min<std::size_t>(keys.size(), 4);
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) text += ", ";
    text.append("'").append(keys[i]).append("'");
  }
  if (shown < keys.size()) text += ", ... " + std::to_string(keys.size()) + " keys";
  return text + ")";
}

std::string call_text(const char* name, std::string_view key) {
  return std::string(name).append("('").append(key).append("')");
}

}  // namespace ddprun::rendezvous
