// Headers of tar, and the walk over them.
#include "trainer/download/tar_members.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace ddprun::trainer {
namespace {

constexpr std::size_t block_bytes = 512;
constexpr std::size_t part_bytes = std::size_t{1} << 18;  // A multiple of a block.
constexpr std::size_t name_at = 0, name_bytes = 100;
constexpr std::size_t size_at = 124, size_bytes = 12;
constexpr std::size_t checksum_at = 148, checksum_bytes = 8;
constexpr std::size_t type_at = 156;
constexpr std::uint64_t member_bytes_max = std::uint64_t{1} << 40;

using Block = std::array<char, block_bytes>;

std::string_view text_in(const Block& block, std::size_t at, std::size_t bytes) {
  const std::string_view field(block.data() + at, bytes);
  return field.substr(0, field.find('\0'));
}

std::uint64_t octal_in(const Block& block, std::size_t at, std::size_t bytes) {
  std::uint64_t value = 0;
  bool begun = false;
  for (const char c : text_in(block, at, bytes)) {
    if (c == ' ' && !begun) continue;
    if (c == ' ') break;
    // Above 8 GB GNU writes bytes instead of digits; no set that we know has such a file.
    if (c < '0' || c > '7') throw TarError("a header has a number that is none");
    begun = true;
    value = value * 8 + static_cast<std::uint64_t>(c - '0');
  }
  return value;
}

// The sum of the header's bytes, with its own field as spaces.
void check_sum(const Block& block) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < block_bytes; ++i) {
    const bool own = i >= checksum_at && i < checksum_at + checksum_bytes;
    sum += own ? ' ' : static_cast<unsigned char>(block[i]);
  }
  if (sum != octal_in(block, checksum_at, checksum_bytes)) {
    throw TarError("a header has another checksum than it says");
  }
}

}  // namespace

void read_tar(const TarSource& source, const TarVisitor& visitor) {
  Block header;
  std::vector<char> part(part_bytes);
  while (true) {
    const std::size_t count = source(header.data(), block_bytes);
    if (count == 0) throw TarError("it ends without its end mark");
    if (count < block_bytes) throw TarError("it ends within a header");
    if (std::all_of(header.begin(), header.end(), [](char c) { return c == '\0'; })) return;
    check_sum(header);
    const std::uint64_t bytes = octal_in(header, size_at, size_bytes);
    if (bytes > member_bytes_max) throw TarError("a header claims more than a terabyte");
    const std::string_view path = text_in(header, name_at, name_bytes);
    // Only the last part of a path is ever used, so no archive can write outside of a folder.
    const std::string name(path.substr(path.rfind('/') + 1));
    const bool file = header[type_at] == '0' || header[type_at] == '\0';
    const bool wanted = file && !name.empty() && visitor.begin(name, bytes);
    const std::uint64_t padded = (bytes + block_bytes - 1) / block_bytes * block_bytes;
    for (std::uint64_t at = 0; at < padded;) {
      const auto wish = static_cast<std::size_t>(std::min<std::uint64_t>(part_bytes, padded - at));
      if (source(part.data(), wish) < wish) throw TarError("it ends within a file");
      const auto content = static_cast<std::size_t>(std::min<std::uint64_t>(wish, bytes - at));
      if (wanted && content > 0) visitor.part(part.data(), content);
      at += wish;
    }
    if (wanted) visitor.end();
  }
}

}  // namespace ddprun::trainer
