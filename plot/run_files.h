// Which files are one run: a folder is, with all that it holds; a file is, and what belongs to it
// is named after it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "plot/run_records.h"

namespace ddprun::plot {

// What was named is not there, cannot be read, or is no file of a run: says which, and what to
// name.
struct RunFilesError : std::runtime_error {
  using runtime_error::runtime_error;
};

// Whether a name has {rank} in it, and the name with the rank in the place of each of them.
bool names_all_ranks(const std::string& name);
std::string name_of_rank(std::string name, std::int64_t rank);

// Each word is a file, a folder, or a name with {rank} in it, which stands for the files of all
// ranks. Throws RunFilesError.
std::vector<RunRecords> read_runs(const std::vector<std::string>& words);

}  // namespace ddprun::plot
