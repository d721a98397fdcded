// The strings of one command while it arrives: those that lie in the bytes just read stay there,
// and are copied only when the command goes on in the next read.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::rendezvous {

class WireFields {
 public:
  std::size_t size() const { return fields_.size(); }

  // A whole string of the input, which stays until hold(), open() or clear().
  void add(std::string_view whole) { fields_.push_back(whole); }
  // The next string arrives in pieces. `large`: it gets a string of its own, see large(); it is
  // then the last of the command.
  void open(bool large);
  // A piece of it. `announced`: how many bytes are to come, with this piece.
  void append(std::string_view piece, std::size_t announced);
  // The input goes away.
  void hold();

  // All of them, once each is whole; valid until the next call.
  std::span<const std::string_view> finish();
  // The large one, which may be moved from after finish(). Null: there is none.
  std::string* large() { return large_used_ ? &large_ : nullptr; }

  // For the next command. Gives back memory that an idle connection does not need.
  void clear();
  std::size_t memory_bytes() const;

 private:
  std::vector<std::string_view> fields_;  // A held one knows its size alone, until finish().
  std::size_t held_fields_ = 0;           // fields_[0 .. held_fields_) lie in held_, in this order.
  std::string held_;
  std::string large_;
  bool large_used_ = false;  // The last field lies in large_.
};

}  // namespace ddprun::rendezvous
