// A data set of image files with given contents, as a list names them: file i has label i.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/trainer/data/data_scratch.h"
#include "trainer/data/sets/csv_list.h"

namespace ddprun::trainer {

// The files are removed with the object.
class ListedFiles {
 public:
  explicit ListedFiles(const std::vector<std::string>& contents) {
    std::string list;
    for (std::size_t i = 0; i < contents.size(); ++i) {
      const std::string name = std::to_string(i) + ".jpg";
      write_bytes(folder_ / name, contents[i]);
      list += name + "," + std::to_string(i) + "\n";
      names_ += argument(folder_ / name);
    }
    write_bytes(folder_ / "list.csv", list);
    dataset_ = open_csv(folder_ / "list.csv", "", true);
  }
  const Dataset& dataset() const { return *dataset_; }
  const std::string& names() const { return names_; }  // Of all, for a command line.
  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }

 private:
  ScratchFolder folder_;
  std::string names_;
  std::unique_ptr<Dataset> dataset_;
};

}  // namespace ddprun::trainer
