// Any bytes as a file of torch.save: tensors that lie within the file, or a reason.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/fuzz/finding.h"
#include "tests/fuzz/stored_tensors.h"
#include "trainer/formats/zip_archive.h"

using namespace ddprun::trainer;
using ddprun::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    const ZipArchive archive(file);
    const std::string name = archive.find_ending("");
    if (!name.empty()) {
      require(archive.has(name), "an entry that is not there is found");
      const std::string_view content = archive.read(name);
      require(content.data() >= file.data() && content.size() <= file.size() &&
                  content.data() + content.size() <= file.data() + file.size(),
              "an entry lies outside of the archive");
    }
  } catch (const ZipError& error) {
    require(error.what()[0] != '\0', "an error without a reason");
  }
  ddprun::fuzz::check_torch_file(file);
  return 0;
}
