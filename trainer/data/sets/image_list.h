// Labelled JPEG and PNG files, as a folder tree or a CSV file lists them, and the data set that
// reads them when they are asked for.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/dataset.h"

namespace ddprun::trainer {

// A million paths in one block of memory.
class PathList {
 public:
  void add(std::string_view path) {
    text_ += path;
    text_ += '\0';  // As system calls want it.
    begins_.push_back(text_.size());
  }
  std::size_t size() const { return begins_.size() - 1; }
  std::string_view text() const { return text_; }  // All of them, each with its '\0'.
  std::string_view operator[](std::size_t i) const {
    return {text_.data() + begins_[i], begins_[i + 1] - begins_[i] - 1};
  }

 private:
  std::string text_;
  std::vector<std::size_t> begins_{0};
};

struct ImageList {
  std::filesystem::path folder;  // What relative paths are relative to.
  PathList paths;
  std::vector<std::int32_t> labels;
  std::vector<std::int32_t> lines;  // Of `source`, counted from 1; empty: not from a list.
  std::string source;               // The list's file name.
  std::int64_t classes = 0;
  std::vector<std::string> class_names;  // As many, or none.
  std::string description;
};

// ".jpg", ".jpeg" or ".png", in any case. What is in the file is another question: image_decoder.h.
bool has_image_ending(std::string_view name);

// Images of any size with three channels, normalised as is usual for ImageNet.
class ImageListDataset : public Dataset {
 public:
  explicit ImageListDataset(ImageList list);

  std::int64_t size() const override { return static_cast<std::int64_t>(list_.labels.size()); }
  ImageShape shape() const override { return {3, 0, 0}; }
  std::int64_t classes() const override { return list_.classes; }
  Normalization normalization() const override;
  std::string description() const override { return list_.description; }
  std::int64_t label(std::int64_t index) const override {
    return list_.labels[static_cast<std::size_t>(index)];
  }
  std::vector<std::string> class_names() const override { return list_.class_names; }
  // Of labels, class names, and paths as they are listed: the folder may be moved.
  std::uint64_t list_checksum() const override;
  std::unique_ptr<ImageReader> make_reader() const override;

  std::filesystem::path path(std::int64_t index) const;
  // "/data/train/cat/1.jpg", "/data/cat/1.jpg (line 7 of /data/train.csv)"
  std::string name(std::int64_t index) const override;

 private:
  ImageList list_;
};

}  // namespace ddprun::trainer
