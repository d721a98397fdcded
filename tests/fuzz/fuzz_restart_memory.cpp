// Whatever lies in the memory that outlives a worker: what is found there lies inside of it, is
// read as a checkpoint or refused, and what is kept next is found first.
//
// An input is that memory from its beginning, as far as it goes; of each half a page is kept.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "tests/fuzz/finding.h"
#include "trainer/formats/safetensors_header.h"
#include "worker/restart_memory.h"

using ddprun::fuzz::require;
using ddprun::worker::RestartMemory;

namespace {

constexpr std::size_t half_bytes = 4'096;

// The memory of a launcher, for all inputs.
struct Launcher {
  Launcher() : fd(::memfd_create("fuzz", MFD_CLOEXEC)) {
    require(::ftruncate(fd, 2 * half_bytes) == 0, "no memory");
  }
  void fill(const std::uint8_t* data, std::size_t size) const {
    std::uint8_t all[2 * half_bytes] = {};
    std::memcpy(all, data, std::min(size, sizeof all));
    require(::pwrite(fd, all, sizeof all, 0) == sizeof all, "no memory");
  }
  int fd;
};

void read_as_checkpoint(std::string_view content) {
  try {
    const auto header = ddprun::trainer::parse_safetensors_header(content, "memory");
    require(header.data.data() + header.data.size() == content.data() + content.size(),
            "the data is not the end of the content");
  } catch (const ddprun::trainer::SafetensorsError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Launcher launcher;
  launcher.fill(data, size);
  auto memory = RestartMemory::map(launcher.fd);
  require(memory.has_value(), "it cannot be mapped");
  require(memory->contents().size() <= 2, "more contents than halves");
  for (const std::string_view content : memory->contents()) {
    require(content.size() <= memory->bytes_max(), "longer than a half");
    read_as_checkpoint(content);
  }
  for (const std::string next : {"one", "two", "three"}) {
    memory->begin();
    require(memory->contents().size() <= 1, "what is being replaced is still there");
    require(memory->add(next.data(), next.size()), "it does not fit");
    memory->commit();
    const auto found = memory->contents();
    require(!found.empty() && found.front() == next, "what was kept last is not found first");
  }
  require(memory->contents().size() == 2 && memory->contents().back() == "two",
          "the one before is not there");
  return 0;
}
