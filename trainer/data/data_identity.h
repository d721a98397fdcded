// What makes data the same data for a checkpoint: how many images, which classes, in which list.
//
// A position in an epoch counts the images of one list, and a label is the number of one class:
// with another list or other classes training goes on without an error, and to no use. What is in
// the images is left out: reading a million files would take longer than what it protects. A core:
// no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trainer/data/dataset.h"

namespace ddprun::trainer {

struct DataIdentity {
  std::int64_t images = 0;
  std::vector<std::string> class_names;  // By label; empty: the classes have numbers only.
  std::string list_checksum;             // 16 hexadecimal digits; empty: not to be compared.
};

// Of a set whose list counts: one to train on, or whose accuracies are compared. A million paths
// take some hundredths of a second.
DataIdentity identify(const Dataset& dataset);

// Of what is only evaluated: any images may be, but their labels must mean the same classes.
DataIdentity identify_classes(const Dataset& dataset);

// The names as data_metadata() writes them: "cat,dog", ASCII without blanks, %XX for all else.
std::string class_list(const DataIdentity& identity);

using Metadata = std::map<std::string, std::string>;  // Of a file: UTF-8, for any names.

Metadata data_metadata(const DataIdentity& identity);

// In what the data that `found` tells of is other than `expected`, in words; "" where nothing is.
// Compares what both tell of: files of older versions tell nothing.
std::string data_difference(const Metadata& found, const DataIdentity& expected);

// Whether a file's metadata tells which data it is of.
bool tells_data(const Metadata& found);

}  // namespace ddprun::trainer
