// Images of one size in files of fixed records: each is read when a batch needs it, and the ranks
// of a host share the pages.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trainer/data/dataset.h"
#include "trainer/data/sets/record_file.h"

namespace ddprun::trainer {

class RecordDataset : public Dataset {
 public:
  // Where the first pixel of an image is.
  struct Place {
    std::size_t file;     // Of Contents::files.
    std::int64_t offset;  // In bytes.
  };
  struct Contents {
    ImageView layout;  // Of every image; `data` is not used.
    std::int64_t classes = 0;
    Normalization normalization;
    std::string description;
    std::vector<RecordFile> files;
    std::vector<Place> images;
    std::vector<std::uint8_t> labels;  // As many.
  };

  explicit RecordDataset(Contents contents) : contents_(std::move(contents)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(contents_.labels.size()); }
  ImageShape shape() const override {
    return {contents_.layout.channels, contents_.layout.height, contents_.layout.width};
  }
  std::int64_t classes() const override { return contents_.classes; }
  Normalization normalization() const override { return contents_.normalization; }
  std::string description() const override { return contents_.description; }
  std::int64_t label(std::int64_t index) const override {
    return contents_.labels[static_cast<std::size_t>(index)];
  }
  std::unique_ptr<ImageReader> make_reader() const override;

 private:
  class Reader;

  Contents contents_;
};

}  // namespace ddprun::trainer
