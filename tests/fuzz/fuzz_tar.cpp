// Any bytes must give files of the announced sizes, with plain names, or a reason.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tests/fuzz/finding.h"
#include "trainer/download/tar_members.h"

using namespace ddprun::trainer;
using ddprun::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::size_t at = 0;
  std::uint64_t left = 0;  // Of the file at hand.
  const auto source = [&](char* to, std::size_t count) {
    const std::size_t given = std::min(count, size - at);
    if (given > 0) std::memcpy(to, data + at, given);
    at += given;
    return given;
  };
  const TarVisitor visitor{.begin =
                               [&](const std::string& name, std::uint64_t bytes) {
                                 require(left == 0, "a file begins within another");
                                 require(!name.empty() && name.find('/') == std::string::npos,
                                         "a name with a folder");
                                 left = bytes;
                                 return true;
                               },
                           .part =
                               [&](const char*, std::size_t count) {
                                 require(count <= left, "a file is longer than announced");
                                 left -= count;
                               },
                           .end = [&] { require(left == 0, "a file is shorter than announced"); }};
  try {
    read_tar(source, visitor);
  } catch (const TarError& error) {
    require(error.what()[0] != '\0', "an error without a reason");
  }
  return 0;
}
