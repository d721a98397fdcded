// Archives for tests, as tar writes them.
#pragma once

#include <cstdio>
#include <string>

namespace ddprun::trainer {

inline constexpr std::size_t tar_block_bytes = 512;

inline std::string octal(std::size_t value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%0*zo", digits, value);
  return text;
}

// A member with its header. Type '0' is a file, '5' a folder.
inline std::string tar_member(const std::string& name, const std::string& content,
                              char type = '0') {
  std::string header(tar_block_bytes, '\0');
  header.replace(0, name.size(), name);
  header.replace(100, 7, "0000644");
  header.replace(124, 11, octal(content.size(), 11));
  header.replace(148, 8, 8, ' ');
  header[156] = type;
  header.replace(257, 5, "ustar");
  std::size_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  header.replace(148, 6, octal(sum, 6));
  header[154] = '\0';
  const std::size_t padding =
      (tar_block_bytes - content.size() % tar_block_bytes) % tar_block_bytes;
  return header + content + std::string(padding, '\0');
}

inline std::string tar_end() { return std::string(2 * tar_block_bytes, '\0'); }

}  // namespace ddprun::trainer
