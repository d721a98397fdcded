// One pass from left to right, so that a value which holds a '$' is not read again.
#include "launcher/output/placeholders.h"

#include <cctype>

namespace ddprun::launcher {
namespace {

// ASCII alone, whatever the locale: so are Template's identifiers.
bool starts_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool continues_name(char c) {
  return starts_name(c) || std::isdigit(static_cast<unsigned char>(c)) != 0;
}

}  // namespace

std::string fill_placeholders(const std::string& text,
                              const std::map<std::string, std::string>& values,
                              std::vector<std::string>* unknown) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] != '$' || i + 1 == text.size()) {
      result += text[i++];
      continue;
    }
    if (text[i + 1] == '$') {
      result += '$';
      i += 2;
      continue;
    }
    const bool braced = text[i + 1] == '{';
    const std::size_t begin = i + (braced ? 2 : 1);
    std::size_t end = begin;
    if (end < text.size() && starts_name(text[end])) {
      while (end < text.size() && continues_name(text[end])) ++end;
    }
    const bool closed = !braced || (end < text.size() && text[end] == '}');
    const std::string name = text.substr(begin, end - begin);
    const auto value = values.find(name);
    if (closed && value != values.end()) {
      result += value->second;
      i = end + (braced ? 1 : 0);
    } else {
      if (closed && !name.empty() && unknown != nullptr) unknown->push_back(name);
      result += text[i++];
    }
  }
  return result;
}

}  // namespace ddprun::launcher
