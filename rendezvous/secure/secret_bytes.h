// Bytes that must not be seen: no core file holds them, and nothing of them is left behind.
//
// They have pages of their own, because the kernel is told by page what a core file leaves out.
// Writing them anywhere else (a std::string, a log line) undoes all of this.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

namespace ddprun::rendezvous {

class SecretBytes {
 public:
  SecretBytes() = default;
  // `size` zero bytes. Throws std::system_error when there is no memory.
  explicit SecretBytes(std::size_t size);
  SecretBytes(SecretBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  SecretBytes& operator=(SecretBytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~SecretBytes();  // Overwrites them.

  static SecretBytes copy_of(std::string_view text);

  unsigned char* data() { return data_; }
  const unsigned char* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<const unsigned char> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

  // Keeps the bytes [begin, end) and overwrites the others.
  void keep(std::size_t begin, std::size_t end);

 private:
  unsigned char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace ddprun::rendezvous
