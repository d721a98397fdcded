// The stack machine of pickle, with every effect left out: objects are recorded, none is built.
#include "trainer/formats/pickle_reader.h"

#include <fmt/format.h>

#include <map>

namespace ddprun::trainer {

using Kind = PickleValue::Kind;

namespace {

// Of a module or function. A name can be put together again and again from texts that were given
// once, so that without a limit a few bytes would take any amount of memory.
constexpr std::size_t name_bytes_max = 256;

constexpr char proto = '\x80';  // The first instruction since protocol 2.
constexpr const char* old_protocol = ": save it with pickle protocol 2 or higher";

}  // namespace

const PickleValue* PickleValue::find(std::string_view key) const {
  if (kind != Kind::Dict) return nullptr;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (items[i]->kind == Kind::Text && items[i]->text == key) return items[i + 1];
  }
  return nullptr;
}

// The stack machine that a pickle is written for.
class PickleMachine {
 public:
  PickleMachine(std::string_view bytes, std::deque<PickleValue>& values)
      : bytes_(bytes), values_(values) {}

  const PickleValue* run() {
    while (true) {
      const char code = take(1)[0];
      if (code == '.') return pop();
      if (!push_constant(code) && !change_memo(code) && !build_container(code) &&
          !build_object(code)) {
        throw PickleError(fmt::format(
            "its pickle has the unknown instruction 0x{:02x} at byte {}{}",
            static_cast<unsigned char>(code), at_ - 1, bytes_[0] == proto ? "" : old_protocol));
      }
    }
  }

 private:
  std::string_view take(std::size_t count) {
    if (bytes_.size() - at_ < count) throw PickleError("its pickle is truncated");
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }

  std::uint64_t take_number(std::size_t count) {
    std::uint64_t value = 0;
    const std::string_view digits = take(count);
    for (std::size_t i = count; i-- > 0;) {
      value = value << 8 | static_cast<unsigned char>(digits[i]);
    }
    return value;
  }

  std::string_view take_line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) throw PickleError("its pickle is truncated");
    const std::string_view line = take(end - at_);
    at_ += 1;
    return line;
  }

  PickleValue& push(Kind kind) {
    values_.push_back({.kind = kind});
    stack_.push_back(&values_.back());
    return values_.back();
  }

  PickleValue* pop() {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() <= floor) throw PickleError("its pickle takes more values than it gives");
    PickleValue* value = stack_.back();
    stack_.pop_back();
    return value;
  }

  PickleValue& top() {
    PickleValue* value = pop();
    stack_.push_back(value);
    return *value;
  }

  std::vector<const PickleValue*> pop_to_mark() {
    if (marks_.empty()) throw PickleError("its pickle ends a group that it has not begun");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<const PickleValue*> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }

  std::vector<const PickleValue*> pop_some(std::size_t count) {
    std::vector<const PickleValue*> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    return items;
  }

  void push_integer(std::int64_t value) { push(Kind::Integer).number = value; }
  void push_text(std::string_view text) { push(Kind::Text).text = text; }

  // At most 8 bytes are kept: longer numbers (none that matters here) become 0.
  void push_long(std::size_t count) {
    if (count > sizeof(std::int64_t)) {
      take(count);
      return push_integer(0);
    }
    std::uint64_t value = take_number(count);
    const std::size_t bits = 8 * count;
    if (count > 0 && bits < 64 && (value >> (bits - 1) & 1) != 0)
      value |= ~std::uint64_t{0} << bits;
    push_integer(static_cast<std::int64_t>(value));
  }

  bool push_constant(char code) {
    switch (static_cast<unsigned char>(code)) {
      case static_cast<unsigned char>(proto):
        take(1);
        return true;  // PROTO
      case 0x95:
        take(8);
        return true;  // FRAME
      case 'N':
        push(Kind::None);
        return true;
      case 0x88:
        push(Kind::Boolean).number = 1;
        return true;
      case 0x89:
        push(Kind::Boolean);
        return true;
      case 'J':
        push_integer(static_cast<std::int32_t>(take_number(4)));
        return true;
      case 'K':
        push_integer(static_cast<std::int64_t>(take_number(1)));
        return true;
      case 'M':
        push_integer(static_cast<std::int64_t>(take_number(2)));
        return true;
      case 0x8a:
        push_long(take_number(1));
        return true;
      case 'G':
        take(8);
        push(Kind::Real);
        return true;
      case 'X':
      case 'T':
      case 'B':
        push_text(take(take_number(4)));
        return true;
      case 'U':
      case 'C':
      case 0x8c:
        push_text(take(take_number(1)));
        return true;
      case 0x8d:
      case 0x8e:
      case 0x96:
        push_text(take(take_number(8)));
        return true;
      default:
        return false;
    }
  }

  bool change_memo(char code) {
    switch (static_cast<unsigned char>(code)) {
      case 'q':
        memo_[take_number(1)] = &top();
        return true;
      case 'r':
        memo_[take_number(4)] = &top();
        return true;
      case 0x94:
        memo_[memo_.size()] = &top();
        return true;
      case 'h':
        return push_memo(take_number(1));
      case 'j':
        return push_memo(take_number(4));
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case '0':
        pop();
        return true;
      case '1':
        pop_to_mark();
        return true;
      case '2':
        stack_.push_back(&top());
        return true;
      default:
        return false;
    }
  }

  bool push_memo(std::uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) throw PickleError("its pickle recalls what it has not stored");
    stack_.push_back(found->second);
    return true;
  }

  bool push_group(Kind kind, std::vector<const PickleValue*> items) {
    push(kind).items = std::move(items);
    return true;
  }

  // Into a list, a dict or a set; what an object of another kind would do with them is left out.
  bool extend(const std::vector<const PickleValue*>& items, Kind kind) {
    PickleValue& target = top();
    if (target.kind != kind) return true;
    if (kind == Kind::Dict && items.size() % 2 != 0) {
      throw PickleError("its pickle has a key without a value");
    }
    target.items.insert(target.items.end(), items.begin(), items.end());
    return true;
  }

  bool build_container(char code) {
    switch (static_cast<unsigned char>(code)) {
      case ')':
        return push_group(Kind::Tuple, {});
      case 0x85:
        return push_group(Kind::Tuple, pop_some(1));
      case 0x86:
        return push_group(Kind::Tuple, pop_some(2));
      case 0x87:
        return push_group(Kind::Tuple, pop_some(3));
      case 't':
        return push_group(Kind::Tuple, pop_to_mark());
      case ']':
      case 0x8f:
        return push_group(Kind::List, {});
      case 'l':
      case 0x91:
        return push_group(Kind::List, pop_to_mark());
      case 'a':
        return extend(pop_some(1), Kind::List);
      case 'e':
      case 0x90:
        return extend(pop_to_mark(), Kind::List);
      case '}':
        return push_group(Kind::Dict, {});
      case 's':
        return extend(pop_some(2), Kind::Dict);
      case 'u':
        return extend(pop_to_mark(), Kind::Dict);
      default:
        return false;
    }
  }

  bool build_object(char code) {
    switch (static_cast<unsigned char>(code)) {
      case 'c': {
        const std::string_view module = take_line(), name = take_line();
        push(Kind::Global).text = fmt::format("{} {}", module, name);
        return true;
      }
      case 0x93: {
        const auto names = pop_some(2);
        for (const PickleValue* name : names) {
          if (name->kind != Kind::Text || name->text.size() > name_bytes_max) {
            throw PickleError("its pickle names a function by what is no name");
          }
        }
        push(Kind::Global).text = fmt::format("{} {}", names[0]->text, names[1]->text);
        return true;
      }
      case 'R':
      case 0x81:
        return call(pop_some(2));
      case 0x92:
        return call(pop_some(3));
      case 'b':
        pop();
        top();
        return true;  // An object's attributes: a state_dict's versions.
      case 'Q':
        return push_group(Kind::Persistent, pop_some(1));
      default:
        return false;
    }
  }

  bool call(std::vector<const PickleValue*> items) {
    const PickleValue& callee = *items[0];
    if (callee.kind == Kind::Global && callee.text == "collections OrderedDict") {
      return push_group(Kind::Dict, {});
    }
    return push_group(Kind::Call, std::move(items));
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
  std::deque<PickleValue>& values_;  // A deque: pointers to its elements stay valid.
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;
  std::map<std::uint64_t, PickleValue*> memo_;
};

Pickle::Pickle(std::string_view bytes) { root_ = PickleMachine(bytes, values_).run(); }

}  // namespace ddprun::trainer
