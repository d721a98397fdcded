// What StoreClient sends: the bytes of its requests, and how messages name its calls.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "rendezvous/wire/wire.h"

namespace ddprun::rendezvous {

// A user's key, as PyTorch's client sends it: with "/" before it.
void put_key(std::string& out, std::string_view key);

// The opcode; with its key; with its keys.
std::string request(StoreOp op);
std::string request(StoreOp op, std::string_view key);
std::string request(StoreOp op, std::span<const std::string> keys);

// A PING, which is answered with this nonce when all that was sent before has been carried out.
inline constexpr std::uint32_t confirm_nonce = 0x0DD9'0001;
std::string confirm_request();

// "get('a')", "wait('a', 'b', 'c', 'd', ... 9 keys)".
std::string call_text(const char* name, std::string_view key);
std::string call_text(const char* name, std::span<const std::string> keys);

}  // namespace ddprun::rendezvous
