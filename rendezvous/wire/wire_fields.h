// The strings of one command while it arrives: those that lie in the bytes just read stay there,
// and are copied only when the command goes on in the next read. A large value that comes in pieces
// has a block of its own, which the store can keep. A core: no sockets, threads or clock.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/wire/store_block.h"

namespace ddprun::rendezvous {

// A string of a command that lies in a block of its own, which may be moved from.
struct LargeField {
  std::size_t field = 0;  // Which string of the command, from 0.
  StoreBlock block;
};

class WireFields {
 public:
  std::size_t size() const { return fields_.size(); }

  // A whole string of the input, which stays until hold(), open() or clear().
  void add(std::string_view whole) { fields_.push_back(whole); }
  // The next string arrives in pieces. `large`: into a block of its own.
  void open(bool large);
  // A piece of it. `announced`: how many bytes are to come, with this piece.
  void append(std::string_view piece, std::size_t announced);
  // The string that arrives has a block: room for its next bytes, of `announced` that are to come.
  bool open_large() const { return !large_.empty() && large_.back().field + 1 == fields_.size(); }
  std::span<char> large_room(std::size_t announced);
  void commit_large(std::size_t bytes) { large_.back().block.commit(bytes); }
  // The input goes away.
  void hold();

  // All of them, once each is whole; valid until the next call.
  std::span<const std::string_view> finish();
  std::span<LargeField> large() { return large_; }  // By field; after finish().

  // For the next command. Gives back memory that an idle connection does not need.
  void clear();
  std::size_t memory_bytes() const;

 private:
  std::vector<std::string_view> fields_;  // A held one knows its size alone, until finish().
  std::size_t held_fields_ = 0;  // fields_[0 .. held_fields_) lie in held_, in this order, or in
                                 // large_.
  std::string held_;
  std::vector<LargeField> large_;
};

}  // namespace ddprun::rendezvous
