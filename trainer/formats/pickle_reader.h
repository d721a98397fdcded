// Python's pickle format, read as data: dicts, lists, tuples, numbers and text.
//
// A pickle is a program, and Python runs whatever functions it names. Here a name and a call are
// values like others (Global, Call): nothing is looked up and nothing is run. Memory and time are
// linear in the input. Source: Python's pickletools, protocols 2 to 5.
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::trainer {

// The message says what is wrong; the caller adds the file's name.
class PickleError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct PickleValue {
  enum class Kind {
    None,
    Boolean,     // number
    Integer,     // number
    Real,        // Its value is not kept.
    Text,        // text
    Tuple,       // items
    List,        // items
    Dict,        // items: key, value, key, value ...
    Global,      // text: "module name"
    Call,        // items: what was called, its arguments
    Persistent,  // items: the identity of something that lies outside
  };
  Kind kind = Kind::None;
  std::int64_t number = 0;
  std::string text;
  std::vector<const PickleValue*> items;  // May contain itself: walk to a limited depth.

  // The value of a dict's key; nullptr when this is no dict or has no such key.
  const PickleValue* find(std::string_view key) const;
};

// Owns all values.
class Pickle {
 public:
  explicit Pickle(std::string_view bytes);  // Throws PickleError.
  const PickleValue& root() const { return *root_; }

 private:
  friend class PickleMachine;
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

}  // namespace ddprun::trainer
