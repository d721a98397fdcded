// What is missing of a published data set, fetched into its folder.
//
//   train_X.bin ...                 wanted; never overwritten
//   stl10_binary.tar.gz.partial     coming; the next start goes on from there, and it goes when
//   done train_X.bin.partial             being unpacked
//
// Any number of processes may ask for the same folder at the same time, on any host that sees it:
// one fetches, the others wait for it.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "trainer/data/dataset.h"
#include "trainer/download/published_sets.h"

namespace ddprun::trainer {

// A line for people.
using Say = std::function<void(const std::string&)>;

// What is there under a published file's name, and is another one. No later start finds it better.
class ForeignFileError : public DataError {
 public:
  using DataError::DataError;
};

// Afterwards every file of the set is in `folder`, with the published size and sum. What is there
// and is another file than the published one stays, and is a ForeignFileError. Throws DataError.
void download_set(const PublishedSet& set, const std::filesystem::path& folder, const Say& say);

}  // namespace ddprun::trainer
