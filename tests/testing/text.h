// What tests ask of the texts that come back: outputs, files, messages of errors.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace ddprun::testing {

// True when `text` holds `part`, for checks whose failure shows the text.
inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

// A file's bytes; "" where there is none.
inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The message of the exception of type Error that `call` throws; "" when it throws none.
template <typename Error, typename Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace ddprun::testing
