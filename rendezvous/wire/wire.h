// The c10d store protocol: bytes -> StoreRequest. No sockets, no clock; docs/store_protocol.md has
// the grammar and a captured exchange of every operation.
//
//   first bytes of a connection          family                       opcodes
//   00 CE F7 85 3C (VALIDATE)            C    torch 2.2 and later     StoreOp as below
//   0 (a SET) or 1 .. 11                 A/B  torch 1.13/2.0, 2.1     one less (A: 8 is DELETE_KEY)
//   anything else                        refused
//
// Replies: rendezvous/store/store_reply.h. A core: no sockets, threads or clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "rendezvous/wire/wire_fields.h"

namespace ddprun::rendezvous {

// The opcodes of family C, which every family is translated to.
enum class StoreOp : std::uint8_t {
  Validate = 0,
  Set = 1,
  CompareSet = 2,
  Get = 3,
  Add = 4,
  Check = 5,
  Wait = 6,
  NumKeys = 7,
  DeleteKey = 8,
  Append = 9,
  MultiGet = 10,
  MultiSet = 11,
  CancelWait = 12,
  Ping = 13,
  QueuePush = 14,
  QueuePop = 15,
  QueueLen = 16,
  ListKeys = 17,
  Barrier = 18,
};
inline constexpr std::uint8_t store_op_last = 18;
std::string_view store_op_name(StoreOp op);

inline constexpr std::uint32_t validate_magic = 0x3C85F7CE;
// One-byte answers.
inline constexpr std::uint8_t check_ready = 0, check_not_ready = 1;
inline constexpr std::uint8_t wait_stopped = 0, wait_canceled = 1;

enum class StoreFamily : std::uint8_t {
  Unknown,  // Nothing received yet.
  Legacy,   // A or B; every opcode so far is the same in both.
  A,        // torch 1.13 and 2.0.
  B,        // torch 2.1.
  C,        // torch 2.2 and later.
};

struct WireLimits {
  std::size_t key_bytes_max = 8'192;
  std::size_t value_bytes_max = 64u << 20;
  std::size_t keys_per_request_max = 131'072;  // Pairs, for MULTI_SET.
  std::size_t request_bytes_max = 256u << 20;  // Keys and values of one request together.
  // A value of this size that arrives in pieces gets a block of its own, which the store can keep.
  std::size_t large_value_bytes = 64u << 10;
};

// One command. The views point into the parser or the bytes it was given: they are valid until
// the next call of the parser, or until those bytes change.
struct StoreRequest {
  StoreOp op = StoreOp::Validate;
  std::string_view key;
  std::string_view value;                   // COMPARE_SET: what is expected.
  std::string_view desired;                 // COMPARE_SET only.
  std::int64_t number = 0;                  // ADD: delta. BARRIER: world size. PING: nonce.
  std::span<const std::string_view> items;  // Keys; for MULTI_SET key, value, key, value ...
  // Those of these strings that own their bytes, which may be moved from; ordered by field. Field
  // 0 is the key, 1 the value, 2 `desired`; of a list, the item's place.
  std::span<LargeField> large;
};

enum class ParseStatus : std::uint8_t {
  Request,    // request() is complete; call again for the next one.
  NeedMore,   // Everything was consumed; the command goes on in bytes still to come.
  Ambiguous,  // As NeedMore, but a 1.13 client may wait for the answer to a DELETE_KEY: when no
              // byte comes for a while, call resolve_as_delete(). More bytes make it an APPEND.
  Bad,        // The connection must be closed; bad_reason() says why.
};

// Resumable at every byte: nothing is looked at twice, and a value that arrives in many pieces is
// copied once, or not at all (large_room()). Memory grows with the bytes received, never with a
// length announced.
class StoreParser {
 public:
  // `limits` must outlive the parser.
  explicit StoreParser(const WireLimits& limits) : limits_(&limits) {}

  // For the commands after the one that was returned last. `limits` must outlive the parser.
  void use_limits(const WireLimits& limits) { limits_ = &limits; }

  // Consumes bytes from the front of `input`. After Bad the parser stays Bad.
  ParseStatus next(std::string_view& input);

  // In the middle of a large value: where its next bytes belong, so that they can be received there
  // instead of being given to next(). Empty: there is no such place.
  std::span<char> large_room();
  // So many bytes were received there; call next() then, with what came behind them.
  void received(std::size_t bytes);
  // After Request. The fields that the operation does not have are empty.
  const StoreRequest& request() const { return request_; }
  // After Ambiguous, and a pause of the peer: the command was a DELETE_KEY of family A. Fills
  // request().
  void resolve_as_delete();

  // The peer sends `input` although it waits: its wait has timed out. Only family A does that
  // without CANCEL_WAIT. It must be told apart here, for it may still apply that timeout to its
  // next call, which is then over before the pause that Ambiguous asks for.
  void note_abandoned_wait(std::string_view input);

  const std::string& bad_reason() const { return bad_reason_; }
  StoreFamily family() const { return family_; }
  bool ambiguous() const { return step_ == Step::Ambiguous; }
  bool mid_command() const { return step_ != Step::Op && step_ != Step::Bad && !ambiguous(); }
  std::size_t memory_bytes() const { return fields_.memory_bytes(); }  // Of the command under way.

 private:
  enum class Step : std::uint8_t {
    Op,
    Magic,
    Nonce,
    Integer,
    Count,
    Length,
    Bytes,
    Ambiguous,
    Bad
  };

  bool begin(std::uint8_t opcode);
  bool begin_first(std::uint8_t opcode);
  bool begin_legacy(std::uint8_t opcode);
  bool begin_op(StoreOp op);
  bool advance();
  bool read_number(std::string_view& input);
  bool on_number();
  bool on_magic();
  bool on_length();
  bool next_is_key() const;
  void read_bytes(std::string_view& input);
  void fill_request();
  void reset();
  bool refuse(const std::string& reason);

  const WireLimits* limits_;
  const char* grammar_ = "";       // What is still to come of the command, see wire.cpp.
  std::uint64_t number_ = 0;       // The number being read, little-endian.
  std::size_t items_left_ = 0;     // Strings still to come in a list.
  std::size_t bytes_left_ = 0;     // Of the string being read.
  std::size_t request_bytes_ = 0;  // Announced by the command so far.
  WireFields fields_;
  StoreRequest request_;
  std::string bad_reason_;
  StoreFamily family_ = StoreFamily::Unknown;
  Step step_ = Step::Op;
  std::uint8_t number_have_ = 0;  // Bytes of number_ already read.
  bool list_ = false;             // The command has a list of strings.
  bool pairs_ = false;            // ... of keys and values in turn.
  bool field_open_ = false;       // The last field is not yet whole.
  bool complete_ = false;         // The last call of next() returned a request.
};

// How a client writes numbers and strings (the wire has the byte order of x86-64 and arm64).
template <class Number>
void put_number(std::string& out, Number number) {
  char bytes[sizeof(Number)];
  std::memcpy(bytes, &number, sizeof bytes);
  out.append(bytes, sizeof bytes);
}
inline void put_string(std::string& out, std::string_view text) {
  put_number<std::uint64_t>(out, text.size());
  out.append(text);
}

}  // namespace ddprun::rendezvous
