#include "rendezvous/wire_fields.h"

#include <algorithm>
#include <utility>

namespace ddprun::rendezvous {
namespace {

// What is kept between two commands.
constexpr std::size_t idle_held_bytes = 1024;
constexpr std::size_t idle_fields = 32;

// Grows as bytes arrive, and never beyond what was announced: nothing is left over for the store.
void append_within(std::string& to, std::string_view bytes, std::size_t announced) {
  const std::size_t needed = to.size() + bytes.size();
  if (needed > to.capacity()) {
    // A new string, because reserve() of one with content at least doubles it; by four, so that
    // little is copied.
    std::string larger;
    larger.reserve(std::max(needed, std::min(4 * to.capacity(), to.size() + announced)));
    to = std::move(larger.append(to));
  }
  to.append(bytes);
}

}  // namespace

void WireFields::open(bool large) {
  hold();
  large_used_ = large;
  fields_.emplace_back();
  if (!large) held_fields_ = fields_.size();
}

void WireFields::append(std::string_view piece, std::size_t announced) {
  if (large_used_) return append_within(large_, piece, announced);
  held_.append(piece);
  fields_.back() = {nullptr, fields_.back().size() + piece.size()};
}

void WireFields::hold() {
  for (; held_fields_ < fields_.size() - large_used_; ++held_fields_) {
    std::string_view& field = fields_[held_fields_];
    held_.append(field);
    field = {nullptr, field.size()};
  }
}

std::span<const std::string_view> WireFields::finish() {
  const char* at = held_.data();
  for (std::size_t i = 0; i < held_fields_; ++i) {
    fields_[i] = {at, fields_[i].size()};
    at += fields_[i].size();
  }
  if (large_used_) fields_.back() = large_;
  return fields_;
}

void WireFields::clear() {
  held_fields_ = 0;
  held_.clear();
  fields_.clear();
  if (held_.capacity() > idle_held_bytes) held_ = std::string();
  if (fields_.capacity() > idle_fields) fields_ = {};
  if (large_used_) large_ = std::string();
  large_used_ = false;
}

std::size_t WireFields::memory_bytes() const {
  const std::size_t held = held_.capacity() + large_.capacity();
  return held + fields_.capacity() * sizeof(std::string_view);
}

}  // namespace ddprun::rendezvous
