// Any text must give a list whose labels are classes of it, or a message that names the file.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/fuzz/finding.h"
#include "trainer/data/sets/csv_list.h"

using namespace ddprun::trainer;
using ddprun::fuzz::require;

namespace {

void check(const CsvImages& images) {
  const ImageList& list = images.list;
  require(!list.labels.empty() && list.labels.size() == list.paths.size() &&
              list.labels.size() == list.lines.size(),
          "not one path, label and line for each image");
  for (std::size_t i = 0; i < list.labels.size(); ++i) {
    require(list.labels[i] >= 0 && list.labels[i] < list.classes, "a label that is no class");
    require(has_image_ending(list.paths[i]), "a path that is no image's");
    require(i == 0 || list.lines[i] > list.lines[i - 1], "line numbers do not rise");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t middle = size / 2;
  try {
    const CsvImages train = parse_image_list(text.substr(0, middle), "train", nullptr);
    check(train);
    const CsvImages validation = parse_image_list(text.substr(middle), "val", &train);
    check(validation);
    require(validation.list.classes == train.list.classes, "other classes in validation");
  } catch (const DataError& error) {
    const std::string_view what = error.what();
    require(what.starts_with("train") || what.starts_with("val"), "an error names no file");
  }
  try {
    check(parse_image_list(text, "train", nullptr));
  } catch (const DataError& error) {
    require(std::string_view(error.what()).starts_with("train"), "an error names no file");
  }
  return 0;
}
