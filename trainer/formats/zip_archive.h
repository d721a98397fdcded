// The entries of a zip archive that stores them without compression, as torch.save writes it.
//
// Sizes and places come from the central directory, with ZIP64. Archives are treated as hostile:
// every number is checked before it is used. Source: PKWARE's APPNOTE 6.3, section 4.3.
// A core: no sockets, threads or clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ddprun::trainer {

// The message says what is wrong; the caller adds the file's name.
class ZipError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ZipArchive {
 public:
  // Keeps a view of `bytes`. Throws ZipError.
  explicit ZipArchive(std::string_view bytes);

  bool has(const std::string& name) const { return entries_.contains(name); }

  // The content of an entry, after its checksum was compared. Throws ZipError.
  std::string_view read(const std::string& name) const;

  // The name of the one entry that ends with `ending`; "" when there is none.
  std::string find_ending(std::string_view ending) const;

 private:
  struct Entry {
    std::uint16_t method = 0;
    std::uint32_t crc = 0;
    std::uint64_t bytes = 0;
    std::uint64_t header_at = 0;
  };
  void read_directory(std::uint64_t at, std::uint64_t bytes, std::uint64_t count);

  std::string_view bytes_;
  std::map<std::string, Entry> entries_;
};

}  // namespace ddprun::trainer
