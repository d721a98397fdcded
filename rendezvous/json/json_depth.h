// How deep a JSON text is nested, before it is parsed: for nothing but brackets a parser would take
// gigabytes, and what then walks the values one level a call would run out of stack.
// A core: no sockets, threads or clock.
#pragma once

#include <cstddef>
#include <string_view>

namespace ddprun::rendezvous {

inline bool nests_deeper_than(std::string_view text, int limit) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size() && depth <= limit; ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return depth > limit;
}

}  // namespace ddprun::rendezvous
