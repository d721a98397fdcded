// Lists of images in CSV files: one "path,label" a line, as RFC 4180 has it: fields may stand in
// double quotes, a quote within them is written twice. Lines may end with CR LF; empty lines count
// for nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/dataset.h"
#include "trainer/data/sets/image_list.h"

namespace ddprun::trainer {

// Calls `row` with the number of each record's first line, from 1, and its fields. Throws
// DataError, naming `name` and the line, for a quote that does not end, for text after a quoted
// field, and for a NUL byte, before the first record.
void parse_csv(std::string_view text, const std::string& name,
               const std::function<void(std::int64_t line, const std::vector<std::string>&)>& row);

struct CsvImages {
  ImageList list;                    // Labels only when these are numbers or `names` was known.
  std::vector<std::string> classes;  // Names in order; empty: the labels are numbers.
};

// What `text` lists. The first line is a header if its path has neither a dot nor a slash and its
// label is no number. Columns are found by a header's names (path, image, file, filename; label,
// class, target, category ...); without a header, or of two with other names, they are the first
// two. Labels are numbers from 0 if the first one is, and then all must be; otherwise names,
// numbered in their order byte by byte. `like`: the training set's, whose classes a validation set
// shares. Throws DataError, naming the line, also for a header that tells one of the two alone, or
// none among more than two.
CsvImages parse_image_list(std::string_view text, const std::string& name, const CsvImages* like);

// `file`: the training set's list. `validation_file`: read when `train` is false. Paths in a list
// are relative to its folder. A .gz is unpacked. Throws DataError.
std::unique_ptr<Dataset> open_csv(const std::filesystem::path& file,
                                  const std::filesystem::path& validation_file, bool train);

}  // namespace ddprun::trainer
