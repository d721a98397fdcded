// Images of one size in memory-mapped files of fixed records: nothing is copied before a batch is
// made, and the ranks of a host share the pages.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trainer/data/dataset.h"
#include "trainer/data/mapped_file.h"

namespace ddprun::trainer {

class RecordDataset : public PlainDataset {
 public:
  struct Contents {
    ImageView layout;  // Of every image; `data` is not used.
    std::int64_t classes = 0;
    Normalization normalization;
    std::string description;
    std::vector<MappedFile> files;            // Where `images` point into.
    std::vector<const std::uint8_t*> images;  // The first pixel of each.
    std::vector<std::uint8_t> labels;         // As many.
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
  ImageView image(std::int64_t index) const override {
    ImageView view = contents_.layout;
    view.data = contents_.images[static_cast<std::size_t>(index)];
    return view;
  }

 private:
  Contents contents_;
};

}  // namespace ddprun::trainer
