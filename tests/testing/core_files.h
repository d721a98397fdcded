// What a core file of a process would hold, as the kernel tells it for each mapping.
#pragma once

#include <cstdint>
#include <fstream>
#include <ios>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::testing {

struct MappedPages {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool readable = false;
  bool stack = false;     // The main thread's.
  bool left_out = false;  // Of core files: the flag "dd" (do not dump).
};

// Of a process, or of this one ("self").
inline std::vector<MappedPages> mapped_pages(const std::string& pid = "self") {
  std::vector<MappedPages> result;
  std::ifstream maps("/proc/" + pid + "/smaps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    MappedPages pages;
    char dash = 0;
    std::string flags;
    if (words >> std::hex >> pages.begin >> dash >> pages.end >> flags && dash == '-') {
      pages.readable = flags.front() == 'r';
      pages.stack = line.find("[stack]") != std::string::npos;
      result.push_back(pages);
    } else if (line.rfind("VmFlags:", 0) == 0 && !result.empty()) {
      result.back().left_out = (line + " ").find(" dd ") != std::string::npos;
    }
  }
  return result;
}

inline bool is_left_out_of_cores(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (const MappedPages& pages : mapped_pages()) {
    if (pages.begin <= at && at < pages.end) return pages.left_out;
  }
  return false;
}

// Whether what a core file of `pid` would hold has these bytes in it, the moment's stack aside,
// where saved registers come and go. Needs the right to read its memory, as its parent has where
// ptrace is not restricted.
inline bool core_would_hold(const std::string& pid, std::string_view bytes) {
  std::ifstream memory("/proc/" + pid + "/mem", std::ios::binary);
  for (const MappedPages& pages : mapped_pages(pid)) {
    if (pages.left_out || pages.stack || !pages.readable) continue;
    std::string content(pages.end - pages.begin, '\0');
    memory.clear();
    memory.seekg(static_cast<std::streamoff>(pages.begin));
    memory.read(content.data(), static_cast<std::streamsize>(content.size()));
    if (content.find(bytes) != std::string::npos) return true;
  }
  return false;
}

}  // namespace ddprun::testing
