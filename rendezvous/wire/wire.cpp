// The parser as a table (the grammar of each operation) and a small machine that walks it. c10d's
// older server has a branch for each operation, with blocking reads in between: one slow client
// then stops all others. Here each byte may be the last for now, so the machine can stop after any
// of them.
#include "rendezvous/wire/wire.h"

#include <array>
#include <bit>
#include <cstdio>

namespace ddprun::rendezvous {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire has the host's byte order");

struct Operation {
  const char* name;
  // k: key, v: value, i: 8-byte integer, u: 4-byte nonce, K: count and keys, P: count and pairs.
  const char* grammar;
};
constexpr std::array<Operation, store_op_last + 1> operations{{
    {"VALIDATE", "m"},   {"SET", "kv"},     {"COMPARE_SET", "kvv"}, {"GET", "k"},
    {"ADD", "ki"},       {"CHECK", "K"},    {"WAIT", "K"},          {"GETNUMKEYS", ""},
    {"DELETE_KEY", "k"}, {"APPEND", "kv"},  {"MULTI_GET", "K"},     {"MULTI_SET", "P"},
    {"CANCEL_WAIT", ""}, {"PING", "u"},     {"QUEUE_PUSH", "kv"},   {"QUEUE_POP", "k"},
    {"QUEUE_LEN", "k"},  {"LIST_KEYS", ""}, {"BARRIER", "ki"},
}};

// Clients of torch before 2.2 number the operations differently, in two ways (A and B), and do not
// say who they are (docs/store_protocol.md).
constexpr std::uint8_t legacy_op_last = 11;
constexpr std::uint8_t legacy_op_ambiguous = 8;  // Family A: DELETE_KEY. B: APPEND.

std::string over_limit(const char* what, std::uint64_t size, const char* limit_name,
                       std::size_t limit) {
  return std::string(what) + " of " + std::to_string(size) + ", over " + limit_name + " = " +
         std::to_string(limit);
}

}  // namespace

std::string_view store_op_name(StoreOp op) { return operations[static_cast<std::size_t>(op)].name; }

ParseStatus StoreParser::next(std::string_view& input) {
  if (complete_) reset();
  for (;;) {
    bool done = false;  // The command is complete.
    switch (step_) {
      case Step::Bad:
        return ParseStatus::Bad;
      case Step::Op:
        if (input.empty()) return ParseStatus::NeedMore;
        done = begin(static_cast<std::uint8_t>(input.front()));
        input.remove_prefix(1);
        break;
      case Step::Ambiguous:
        if (input.empty()) return ParseStatus::Ambiguous;
        family_ = StoreFamily::B;
        request_.op = StoreOp::Append;
        grammar_ = "v";
        done = advance();
        break;
      case Step::Bytes:
        read_bytes(input);
        if (bytes_left_ > 0) return ParseStatus::NeedMore;
        done = advance();
        break;
      default:  // The steps that read a number.
        if (!read_number(input)) {
          fields_.hold();
          return ParseStatus::NeedMore;
        }
        done = on_number();
        break;
    }
    if (done) {
      fill_request();
      return ParseStatus::Request;
    }
    if (step_ == Step::Ambiguous && input.empty()) fields_.hold();
  }
}

void StoreParser::resolve_as_delete() {
  family_ = StoreFamily::A;
  request_.op = StoreOp::DeleteKey;
  fill_request();
}

void StoreParser::note_abandoned_wait(std::string_view input) {
  constexpr char legacy_cancel_wait = 11;
  if (family_ != StoreFamily::Legacy || step_ != Step::Op) return;
  if (!input.empty() && input.front() != legacy_cancel_wait) family_ = StoreFamily::A;
}

bool StoreParser::begin(std::uint8_t opcode) {
  request_bytes_ = 0;
  request_.number = 0;
  if (family_ == StoreFamily::Unknown) return begin_first(opcode);
  if (family_ != StoreFamily::C) return begin_legacy(opcode);
  if (opcode == 0) return refuse("a second VALIDATE");
  if (opcode > store_op_last) return refuse("unknown opcode " + std::to_string(opcode));
  return begin_op(static_cast<StoreOp>(opcode));
}

// Tells the families apart: only C sends VALIDATE.
bool StoreParser::begin_first(std::uint8_t opcode) {
  if (opcode == 0) {
    step_ = Step::Magic;
    return false;
  }
  if (opcode > legacy_op_last) {
    char text[64];
    std::snprintf(text, sizeof text, "first byte 0x%02x is no c10d store client", opcode);
    return refuse(text);
  }
  family_ = StoreFamily::Legacy;
  return begin_legacy(opcode);
}

bool StoreParser::begin_legacy(std::uint8_t opcode) {
  if (opcode > legacy_op_last || (family_ == StoreFamily::A && opcode > legacy_op_ambiguous)) {
    return refuse("unknown opcode " + std::to_string(opcode) + " from a client without VALIDATE");
  }
  if (opcode > legacy_op_ambiguous) family_ = StoreFamily::B;
  if (opcode == legacy_op_ambiguous && family_ == StoreFamily::A) {
    return begin_op(StoreOp::DeleteKey);
  }
  if (opcode == legacy_op_ambiguous && family_ == StoreFamily::Legacy) {
    request_.op = StoreOp::DeleteKey;
    grammar_ = "k?";
    return advance();
  }
  // B has the opcodes of C less one. A's 7 is WATCH_KEY, which no client uses: taken as B's
  // DELETE_KEY, because it has the same body.
  return begin_op(static_cast<StoreOp>(opcode + 1));
}

bool StoreParser::begin_op(StoreOp op) {
  request_.op = op;
  grammar_ = operations[static_cast<std::size_t>(op)].grammar;
  return advance();
}

// Takes the next step of the command; true when there is none.
bool StoreParser::advance() {
  number_ = 0;
  number_have_ = 0;
  if (items_left_ > 0) {
    --items_left_;
    step_ = Step::Length;
    return false;
  }
  switch (*grammar_) {
    case '\0':
      return true;
    case 'k':
    case 'v':
      step_ = Step::Length;
      break;
    case 'i':
      step_ = Step::Integer;
      break;
    case 'u':
      step_ = Step::Nonce;
      break;
    case '?':
      step_ = Step::Ambiguous;
      break;
    default:
      list_ = true;
      pairs_ = *grammar_ == 'P';
      step_ = Step::Count;
      break;
  }
  ++grammar_;
  return false;
}

// Reads the number of this step, as many of its bytes as there are; true when it is whole.
bool StoreParser::read_number(std::string_view& input) {
  const unsigned size = step_ == Step::Magic || step_ == Step::Nonce ? 4 : 8;
  if (number_have_ == 0 && input.size() >= size) {
    std::memcpy(&number_, input.data(), size);
    input.remove_prefix(size);
    return true;
  }
  while (number_have_ < size && !input.empty()) {
    number_ |= std::uint64_t{static_cast<unsigned char>(input.front())} << (8 * number_have_++);
    input.remove_prefix(1);
  }
  return number_have_ == size;
}

bool StoreParser::on_number() {
  switch (step_) {
    case Step::Magic:
      return on_magic();
    case Step::Count:
      if (number_ > limits_->keys_per_request_max) {
        return refuse(
            over_limit("a list", number_, "keys_per_request_max", limits_->keys_per_request_max));
      }
      items_left_ = number_ * (pairs_ ? 2 : 1);
      return advance();
    case Step::Length:
      return on_length();
    default:
      request_.number = static_cast<std::int64_t>(number_);
      return advance();
  }
}

bool StoreParser::on_magic() {
  if (number_ == validate_magic) {
    family_ = StoreFamily::C;
    step_ = Step::Op;
    number_ = 0;
    number_have_ = 0;
    return false;
  }
  if (number_ > limits_->key_bytes_max) {
    char text[64];
    std::snprintf(text, sizeof text, "wrong VALIDATE magic 0x%08x", static_cast<unsigned>(number_));
    return refuse(text);
  }
  // An A or B client's SET: these were the low four bytes of the length of its key.
  family_ = StoreFamily::Legacy;
  request_.op = StoreOp::Set;
  grammar_ = "v";
  step_ = Step::Length;
  number_have_ = 4;
  return false;
}

// Whether the next string is a key, and not a value.
bool StoreParser::next_is_key() const {
  return fields_.size() == 0 || (list_ && (!pairs_ || fields_.size() % 2 == 0));
}

bool StoreParser::on_length() {
  const bool key = next_is_key();
  const std::size_t limit = key ? limits_->key_bytes_max : limits_->value_bytes_max;
  if (number_ > limit) {
    return refuse(over_limit(key ? "a key" : "a value", number_,
                             key ? "key_bytes_max" : "value_bytes_max", limit));
  }
  // Checked when it is announced, before a byte of it has come: a limit that is checked later has
  // been paid for already. The difference cannot wrap, as request_bytes_ has passed this check.
  if (number_ > limits_->request_bytes_max - request_bytes_) {
    return refuse(over_limit("a request", request_bytes_ + number_, "request_bytes_max",
                             limits_->request_bytes_max));
  }
  request_bytes_ += number_;
  bytes_left_ = number_;
  step_ = Step::Bytes;
  return false;
}

// Reads the string of this step, as much of it as there is.
void StoreParser::read_bytes(std::string_view& input) {
  const std::string_view piece = input.substr(0, bytes_left_);
  input.remove_prefix(piece.size());
  if (!field_open_ && piece.size() == bytes_left_) {
    fields_.add(piece);
  } else {
    if (!field_open_) {
      fields_.open(!next_is_key() && bytes_left_ >= limits_->large_value_bytes);
    }
    fields_.append(piece, bytes_left_);
  }
  bytes_left_ -= piece.size();
  field_open_ = bytes_left_ > 0;
}

std::span<char> StoreParser::large_room() {
  if (step_ != Step::Bytes || !field_open_ || !fields_.open_large()) return {};
  return fields_.large_room(bytes_left_);
}

void StoreParser::received(std::size_t bytes) {
  fields_.commit_large(bytes);
  bytes_left_ -= bytes;
}

void StoreParser::fill_request() {
  const auto fields = fields_.finish();
  const std::size_t strings = list_ ? 0 : fields.size();
  request_.key = strings > 0 ? fields[0] : std::string_view{};
  request_.value = strings > 1 ? fields[1] : std::string_view{};
  request_.desired = strings > 2 ? fields[2] : std::string_view{};
  request_.items = {};
  if (list_) request_.items = fields;
  request_.large = fields_.large();
  step_ = Step::Op;
  complete_ = true;
}

// Forgets the command that was returned.
void StoreParser::reset() {
  complete_ = false;
  list_ = false;
  pairs_ = false;
  fields_.clear();
}

bool StoreParser::refuse(const std::string& reason) {
  const bool in_operation = step_ == Step::Count || step_ == Step::Length;
  bad_reason_ = in_operation ? std::string(store_op_name(request_.op)) + ": " : std::string();
  bad_reason_ += reason;
  step_ = Step::Bad;
  return false;
}

}  // namespace ddprun::rendezvous
