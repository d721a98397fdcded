// Where the strings of a command lie: in the input as long as that stays, in one buffer of their
// own after it, each large one in a block that the store can keep.
#include "rendezvous/wire/wire_fields.h"

#include <algorithm>
#include <utility>

namespace ddprun::rendezvous {
namespace {

// What is kept between two commands.
constexpr std::size_t idle_held_bytes = 1024;
constexpr std::size_t idle_fields = 32;

}  // namespace

void WireFields::open(bool large) {
  hold();
  fields_.emplace_back();
  held_fields_ = fields_.size();
  if (large) large_.push_back({.field = fields_.size() - 1, .block = {}});
}

void WireFields::append(std::string_view piece, std::size_t announced) {
  if (!open_large()) {
    held_.append(piece);
    fields_.back() = {nullptr, fields_.back().size() + piece.size()};
    return;
  }
  StoreBlock& block = large_.back().block;
  while (block.room_bytes() < piece.size()) block.grow_for(announced);
  block.append(piece);
}

std::span<char> WireFields::large_room(std::size_t announced) {
  StoreBlock& block = large_.back().block;
  if (block.room_bytes() == 0) block.grow_for(announced);
  return {block.room(), std::min(block.room_bytes(), announced)};
}

void WireFields::hold() {
  for (; held_fields_ < fields_.size(); ++held_fields_) {
    std::string_view& field = fields_[held_fields_];
    held_.append(field);
    field = {nullptr, field.size()};
  }
}

std::span<const std::string_view> WireFields::finish() {
  const char* at = held_.data();
  auto large = large_.begin();
  for (std::size_t i = 0; i < held_fields_; ++i) {
    if (large != large_.end() && large->field == i) {
      large->block.trim();
      fields_[i] = (large++)->block.view();
    } else {
      fields_[i] = {at, fields_[i].size()};
      at += fields_[i].size();
    }
  }
  return fields_;
}

void WireFields::clear() {
  held_fields_ = 0;
  held_.clear();
  fields_.clear();
  if (held_.capacity() > idle_held_bytes) held_ = std::string();
  if (fields_.capacity() > idle_fields) fields_ = {};
  if (!large_.empty()) large_ = std::vector<LargeField>();
}

std::size_t WireFields::memory_bytes() const {
  std::size_t bytes = held_.capacity() + fields_.capacity() * sizeof(std::string_view) +
                      large_.capacity() * sizeof(LargeField);
  for (const LargeField& large : large_) bytes += large.block.capacity();
  return bytes;
}

}  // namespace ddprun::rendezvous
