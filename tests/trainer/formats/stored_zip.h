// Writes zip archives whose entries are not compressed, as torch.save does.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::trainer {

inline std::string little_endian(std::uint64_t number, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i, number >>= 8) text += static_cast<char>(number & 0xff);
  return text;
}

// Names and contents.
inline std::string stored_zip(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string file, directory;
  for (const auto& [name, content] : entries) {
    const auto crc = ::crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size());
    const std::string fields = little_endian(0, 8) + little_endian(crc, 4) +
                               little_endian(content.size(), 4) + little_endian(content.size(), 4) +
                               little_endian(name.size(), 2);
    directory += std::string("PK\1\2") + little_endian(0, 4) + fields + little_endian(0, 12) +
                 little_endian(file.size(), 4) + name;
    file +=
        std::string("PK\3\4") + little_endian(0, 2) + fields + little_endian(0, 2) + name + content;
  }
  const std::string count = little_endian(entries.size(), 2);
  return file + directory + "PK\5\6" + little_endian(0, 4) + count + count +
         little_endian(directory.size(), 4) + little_endian(file.size(), 4) + little_endian(0, 2);
}

}  // namespace ddprun::trainer
