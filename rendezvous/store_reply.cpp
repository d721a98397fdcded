#include "rendezvous/store_reply.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace ddprun::rendezvous {
namespace {

// Between two uses a buffer keeps no more than this.
constexpr std::size_t idle_bytes_max = 256u << 10;

}  // namespace

void StoreValue::assign(std::string_view bytes) {
  if (bytes.size() < shared_bytes_min) {
    shared_.reset();
    small_.assign(bytes);
  } else {
    shared_ = std::make_shared<std::string>(bytes);
    small_ = std::string();
  }
}

void StoreValue::assign(std::string&& bytes) {
  if (bytes.size() < shared_bytes_min) return assign(std::string_view(bytes));
  shared_ = std::make_shared<std::string>(std::move(bytes));
  small_ = std::string();
}

void StoreValue::append(std::string_view bytes) {
  if (shared_ && shared_.use_count() == 1) {
    shared_->append(bytes);
  } else if (size() + bytes.size() < shared_bytes_min) {
    small_.append(bytes);
  } else {
    std::string both;
    both.reserve(size() + bytes.size());
    both.append(view()).append(bytes);
    assign(std::move(both));
  }
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
    add(shared.value->data(), shared.value->size());
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
  while (gone < shared_.size() && shared_[gone].at + front + shared_[gone].value->size() <= sent_) {
    front += shared_[gone++].value->size();
  }
  const std::size_t whole =
      gone < shared_.size() ? std::min(sent_ - front, shared_[gone].at) : sent_ - front;
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
