// STL-10, binary version: 96x96 colour images of ten classes; 5,000 to train with, 8,000 to test.
//
// *_X.bin: 27,648 bytes an image, no header: red, green, blue planes, each column by column
// *_y.bin: one byte an image, 1-10: a line of class_names.txt
// Source of the format: Coates, Lee, Ng, "An analysis of single layer networks in unsupervised
// feature learning", AISTATS 2011; cs.stanford.edu/~acoates/stl10.
#pragma once

#include <filesystem>
#include <memory>

#include "trainer/data/dataset.h"

namespace ddprun::trainer {

// train_X.bin and train_y.bin, or test_X.bin and test_y.bin, of `folder`; where they are missing, a
// part of the set, named subset<N>_train_X.bin and subset<N>_train_y.bin (the greatest N). There
// must be one label for each image: which belongs to which is never guessed. Throws MissingPart and
// DataError.
std::unique_ptr<Dataset> open_stl10(const std::filesystem::path& folder, bool train);

}  // namespace ddprun::trainer
