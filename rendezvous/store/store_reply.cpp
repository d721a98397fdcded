// A thousand workers that fetch one large value must not cost a thousand copies of it: replies
// refer to the value, and the budget counts it once, until the last of them is sent.
#include "rendezvous/store/store_reply.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace ddprun::rendezvous {
namespace {

// Between two uses a buffer keeps no more than this.
constexpr std::size_t idle_bytes_max = 256u << 10;

}  // namespace

bool StoreValue::assign(std::string_view bytes, MemoryBudget& budget) {
  if (bytes.size() < shared_bytes_min) {
    shared_.reset();
    small_.assign(bytes);
    return true;
  }
  if (!take(bytes.size(), budget)) return false;
  hold(StoreBlock(bytes), budget);
  return true;
}

bool StoreValue::assign(StoreBlock&& bytes, MemoryBudget& budget) {
  if (bytes.size() < shared_bytes_min) return assign(bytes.view(), budget);
  if (!take(bytes.size(), budget)) return false;
  hold(std::move(bytes), budget);
  return true;
}

bool StoreValue::append(std::string_view bytes, MemoryBudget& budget) {
  const std::size_t both = size() + bytes.size();
  if (both < shared_bytes_min) {
    small_.append(bytes);
    return true;
  }
  // In place only while no reply refers to it: what was asked for before is sent as it was then.
  if (shared_ && shared_.use_count() == 1) {
    if (!budget.change(shared_->charged, both)) return false;
    shared_->charged = both;
    shared_->block.append(bytes);
    return true;
  }
  if (!take(both, budget)) return false;
  StoreBlock block;
  block.reserve(both);
  block.append(view());
  block.append(bytes);
  hold(std::move(block), budget);
  return true;
}

// Takes `bytes` for a value that replaces this one, whose own go back if nobody else holds it.
bool StoreValue::take(std::size_t bytes, MemoryBudget& budget) {
  const bool alone = shared_ && shared_.use_count() == 1;
  if (!budget.change(alone ? shared_->charged : 0, bytes)) return false;
  if (alone) shared_->charged = 0;
  return true;
}

// After take() of its size.
void StoreValue::hold(StoreBlock&& bytes, MemoryBudget& budget) {
  const std::size_t size = bytes.size();
  shared_ = std::make_shared<SharedBlock>(std::move(bytes), budget, size);
  small_ = std::string();
}

void ReplyBuffer::put_value(const StoreValue& value) {
  if (!value.shared()) return put_bytes(value.view());
  put<std::uint64_t>(value.size());
  shared_.push_back({bytes_.size(), value.shared()});
  shared_bytes_ += value.size();
}

void ReplyBuffer::clear() {
  bytes_.clear();
  if (bytes_.capacity() > idle_bytes_max) bytes_ = std::string();
  shared_.clear();
  shared_bytes_ = 0;
  sent_ = 0;
}

std::size_t ReplyBuffer::pieces(iovec* out, std::size_t count) const {
  std::size_t filled = 0;
  std::size_t skip = sent_;
  const auto add = [&](const char* data, std::size_t size) {
    const std::size_t skipped = std::min(skip, size);
    skip -= skipped;
    if (skipped == size || filled == count) return;
    out[filled++] = {const_cast<char*>(data) + skipped, size - skipped};
  };
  std::size_t at = 0;
  for (const Shared& shared : shared_) {
    add(bytes_.data() + at, shared.at - at);
    add(shared.value->block.view().data(), shared.value->block.size());
    at = shared.at;
    if (filled == count) return filled;
  }
  add(bytes_.data() + at, bytes_.size() - at);
  return filled;
}

void ReplyBuffer::consume(std::size_t size) {
  sent_ += size;
  if (empty()) return clear();
  // Let go of large values and of a long sent front, so that a slow reader holds what it must.
  std::size_t gone = 0;
  std::size_t front = 0;
  while (gone < shared_.size() &&
         shared_[gone].at + front + shared_[gone].value->block.size() <= sent_) {
    front += shared_[gone++].value->block.size();
  }
  const std::size_t whole =
      gone < shared_.size() ? std::min(sent_ - front, shared_[gone].at) : sent_ - front;
  // Not for every few bytes: erasing the front moves all that follows.
  if (gone == 0 && whole < idle_bytes_max) return;
  shared_.erase(shared_.begin(), shared_.begin() + static_cast<std::ptrdiff_t>(gone));
  for (Shared& shared : shared_) shared.at -= whole;
  bytes_.erase(0, whole);
  shared_bytes_ -= front;
  sent_ -= front + whole;
}

void ReplyBuffer::take(ReplyBuffer& other) {
  if (empty()) {
    clear();
    std::swap(*this, other);
    return;
  }
  assert(other.sent_ == 0);
  for (Shared& shared : other.shared_) {
    shared_.push_back({bytes_.size() + shared.at, std::move(shared.value)});
  }
  bytes_.append(other.bytes_);
  shared_bytes_ += other.shared_bytes_;
  other.clear();
}

std::string ReplyBuffer::text() const {
  std::vector<iovec> all(2 * shared_.size() + 1);
  all.resize(pieces(all.data(), all.size()));
  std::string text;
  for (const iovec& piece : all) text.append(static_cast<char*>(piece.iov_base), piece.iov_len);
  return text;
}

}  // namespace ddprun::rendezvous
