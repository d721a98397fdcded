// Memory for large values straight from the kernel: mremap() grows it by moving pages and not
// bytes, and what is given back goes back to the system at once, which malloc() does not promise.
#include "rendezvous/wire/store_block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t page_bytes = 4'096;  // Or a multiple of it: the kernel rounds up.
constexpr std::size_t first_bytes = 1u << 10;
// Then the kernel may hand out large pages, which saves most of the page faults; what it may take
// beyond the bytes received is within the capacity, which is what the budget counts.
constexpr std::size_t large_pages_bytes_min = 4u << 20;

std::size_t rounded(std::size_t capacity) {
  if (capacity < StoreBlock::mapped_bytes_min) return capacity;
  return (capacity + page_bytes - 1) / page_bytes * page_bytes;
}

bool mapped(std::size_t capacity) { return capacity >= StoreBlock::mapped_bytes_min; }

char* map(std::size_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(at);
}

}  // namespace

StoreBlock::StoreBlock(std::string_view bytes) {
  reserve(bytes.size());
  append(bytes);
}

StoreBlock::StoreBlock(StoreBlock&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      capacity_(std::exchange(other.capacity_, 0)) {}

StoreBlock& StoreBlock::operator=(StoreBlock&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

StoreBlock::~StoreBlock() {
  if (mapped(capacity_)) {
    ::munmap(data_, capacity_);
  } else {
    std::free(data_);
  }
}

void StoreBlock::reserve(std::size_t capacity) {
  if (capacity > capacity_) resize_memory(rounded(capacity));
}

void StoreBlock::grow_for(std::size_t announced) {
  const std::size_t wanted = std::max(first_bytes, 2 * capacity_);
  reserve(std::min(wanted, size_ + announced));
}

void StoreBlock::append(std::string_view bytes) {
  if (bytes.empty()) return;
  if (bytes.size() > room_bytes()) reserve(std::max(size_ + bytes.size(), size_ * 5 / 4));
  std::memcpy(room(), bytes.data(), bytes.size());
  commit(bytes.size());
}

void StoreBlock::trim() {
  // Not from pages to malloc: that would copy, to win less than a page.
  const std::size_t wanted = std::max(rounded(size_), mapped(capacity_) ? mapped_bytes_min : 1);
  if (wanted < capacity_) resize_memory(wanted);
}

// To a capacity that rounded() has made.
void StoreBlock::resize_memory(std::size_t capacity) {
  char* data = nullptr;
  if (mapped(capacity_)) {
    void* moved = ::mremap(data_, capacity_, capacity, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) throw std::bad_alloc();
    data = static_cast<char*>(moved);
  } else if (mapped(capacity)) {
    data = map(capacity);
    if (size_ > 0) std::memcpy(data, data_, size_);
    std::free(data_);
  } else {
    data = static_cast<char*>(std::realloc(data_, capacity));
    if (data == nullptr) throw std::bad_alloc();
  }
  data_ = data;
  capacity_ = capacity;
  if (capacity >= large_pages_bytes_min) ::madvise(data_, capacity_, MADV_HUGEPAGE);
}

}  // namespace ddprun::rendezvous
