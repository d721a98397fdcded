// A tree of JPEG and PNG files in which folders are classes, as torchvision's ImageFolder reads it:
//
//   DIR/train/CLASS/any/depth/x.jpg
//   DIR/val/CLASS/x.JPEG
//
// Classes are numbered in the order of their names, byte by byte; images are in torchvision's
// order.
#pragma once

#include <filesystem>
#include <memory>

#include "trainer/data/dataset.h"
#include "trainer/data/sets/image_list.h"

namespace ddprun::trainer {

// The classes of a folder: its folders' names, sorted. Throws DataError when it has none.
std::vector<std::string> list_classes(const std::filesystem::path& folder);

// The images of `folder`'s classes, labelled by their position in `classes`. Throws DataError for a
// class that is not in `classes`, and for one without images if `each_class`; `what` is for the
// description: "ImageFolder train".
ImageList list_images(const std::filesystem::path& folder, const std::vector<std::string>& classes,
                      bool each_class, const std::string& what);

// The classes of both sets are those of `folder`/train, so a class has the same label in both;
// those of the images to validate with where there is no such folder. The images are in
// `folder`/train or `folder`/val, or, for validation, in `validation_folder` unless it is empty.
// Throws MissingPart and DataError.
std::unique_ptr<Dataset> open_image_folder(const std::filesystem::path& folder,
                                           const std::filesystem::path& validation_folder,
                                           bool train);

}  // namespace ddprun::trainer
