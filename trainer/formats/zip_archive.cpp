// Only what torch.save writes: stored entries found by the directory, none of it trusted.
#include "trainer/formats/zip_archive.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>

namespace ddprun::trainer {
namespace {

constexpr std::uint32_t local_signature = 0x04034b50;
constexpr std::uint32_t entry_signature = 0x02014b50;
constexpr std::uint32_t end_signature = 0x06054b50;
constexpr std::uint32_t end64_signature = 0x06064b50;
constexpr std::uint32_t locator64_signature = 0x07064b50;
constexpr std::size_t local_bytes = 30, entry_bytes = 46, end_bytes = 22, end64_bytes = 56,
                      locator64_bytes = 20;
constexpr std::size_t comment_bytes_max = 65'535;
constexpr std::uint16_t stored = 0;  // The method of an entry that is not compressed.
constexpr std::uint16_t zip64_field = 1;
constexpr std::uint32_t in_zip64_field = 0xffffffff;

// Reads within `bytes` or throws.
template <typename Number>
Number number_at(std::string_view bytes, std::uint64_t at) {
  if (at > bytes.size() || bytes.size() - at < sizeof(Number)) throw ZipError("it is truncated");
  Number value = 0;
  for (std::size_t i = sizeof(Number); i-- > 0;) {
    value = static_cast<Number>(value << 8 | static_cast<unsigned char>(bytes[at + i]));
  }
  return value;
}

std::string_view slice(std::string_view bytes, std::uint64_t at, std::uint64_t count) {
  if (at > bytes.size() || bytes.size() - at < count) throw ZipError("it is truncated");
  return bytes.substr(at, count);
}

std::size_t find_end(std::string_view bytes) {
  const std::size_t last = bytes.size() < end_bytes ? 0 : bytes.size() - end_bytes;
  const std::size_t first = last > comment_bytes_max ? last - comment_bytes_max : 0;
  for (std::size_t at = last + 1; at-- > first;) {
    if (bytes.size() >= end_bytes && number_at<std::uint32_t>(bytes, at) == end_signature) {
      return at;
    }
  }
  throw ZipError("it has no directory at its end: truncated, or not an archive");
}

// The 64-bit values that stand in the extra field for those which are all ones, in this order.
void read_zip64(std::string_view extra, std::uint64_t& bytes, std::uint64_t& packed_bytes,
                std::uint64_t& header_at) {
  while (extra.size() >= 4) {
    const auto id = number_at<std::uint16_t>(extra, 0);
    std::string_view field = slice(extra, 4, number_at<std::uint16_t>(extra, 2));
    extra.remove_prefix(4 + field.size());
    if (id != zip64_field) continue;
    for (std::uint64_t* value : {&bytes, &packed_bytes, &header_at}) {
      if (*value != in_zip64_field) continue;
      *value = number_at<std::uint64_t>(field, 0);
      field.remove_prefix(sizeof(std::uint64_t));
    }
  }
}

}  // namespace

ZipArchive::ZipArchive(std::string_view bytes) : bytes_(bytes) {
  const std::size_t end = find_end(bytes);
  std::uint64_t count = number_at<std::uint16_t>(bytes, end + 10);
  std::uint64_t directory_bytes = number_at<std::uint32_t>(bytes, end + 12);
  std::uint64_t at = number_at<std::uint32_t>(bytes, end + 16);
  if (end >= locator64_bytes &&
      number_at<std::uint32_t>(bytes, end - locator64_bytes) == locator64_signature) {
    const auto end64 = number_at<std::uint64_t>(bytes, end - locator64_bytes + 8);
    const std::string_view record = slice(bytes, end64, end64_bytes);
    if (number_at<std::uint32_t>(record, 0) != end64_signature) {
      throw ZipError("its ZIP64 directory is not where it should be");
    }
    count = number_at<std::uint64_t>(record, 32);
    directory_bytes = number_at<std::uint64_t>(record, 40);
    at = number_at<std::uint64_t>(record, 48);
  }
  read_directory(at, directory_bytes, count);
}

void ZipArchive::read_directory(std::uint64_t at, std::uint64_t bytes, std::uint64_t count) {
  std::string_view directory = slice(bytes_, at, bytes);
  std::uint64_t stored_bytes = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string_view head = slice(directory, 0, entry_bytes);
    if (number_at<std::uint32_t>(head, 0) != entry_signature) {
      throw ZipError("its directory is damaged");
    }
    const std::size_t name_bytes = number_at<std::uint16_t>(head, 28);
    const std::size_t extra_bytes = number_at<std::uint16_t>(head, 30);
    const std::size_t comment_bytes = number_at<std::uint16_t>(head, 32);
    const std::string name(slice(directory, entry_bytes, name_bytes));
    Entry entry{.method = number_at<std::uint16_t>(head, 10),
                .crc = number_at<std::uint32_t>(head, 16),
                .bytes = number_at<std::uint32_t>(head, 24),
                .header_at = number_at<std::uint32_t>(head, 42)};
    std::uint64_t packed_bytes = number_at<std::uint32_t>(head, 20);
    read_zip64(slice(directory, entry_bytes + name_bytes, extra_bytes), entry.bytes, packed_bytes,
               entry.header_at);
    // Together they fit into the archive, so that to read each of them takes no longer than that.
    if (entry.method == stored &&
        (entry.bytes > bytes_.size() || (stored_bytes += entry.bytes) > bytes_.size())) {
      throw ZipError(fmt::format("its entry '{}' claims more bytes than it has left", name));
    }
    if (!entries_.emplace(name, entry).second) {
      throw ZipError(fmt::format("it has two entries '{}'", name));
    }
    directory.remove_prefix(
        slice(directory, 0, entry_bytes + name_bytes + extra_bytes + comment_bytes).size());
  }
}

std::string_view ZipArchive::read(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw ZipError(fmt::format("it has no entry '{}'", name));
  const Entry& entry = found->second;
  if (entry.method != stored) throw ZipError(fmt::format("its entry '{}' is compressed", name));
  const std::string_view head = slice(bytes_, entry.header_at, local_bytes);
  if (number_at<std::uint32_t>(head, 0) != local_signature) {
    throw ZipError(fmt::format("its entry '{}' is not where the directory says", name));
  }
  // The local header's own extra field counts: torch.save pads there, so that data begins aligned,
  // and the directory does not repeat it.
  const std::uint64_t at = entry.header_at + local_bytes + number_at<std::uint16_t>(head, 26) +
                           number_at<std::uint16_t>(head, 28);
  const std::string_view content = slice(bytes_, at, entry.bytes);
  if (::crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size()) != entry.crc) {
    throw ZipError(fmt::format("the content of its entry '{}' is damaged", name));
  }
  return content;
}

std::string ZipArchive::find_ending(std::string_view ending) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const auto& entry) { return entry.first.ends_with(ending); });
  return found == entries_.end() ? "" : found->first;
}

}  // namespace ddprun::trainer
