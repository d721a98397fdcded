// The walk over the tree: labels are numbers by order, so the order must be torchvision's exactly.
#include "trainer/data/sets/image_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "worker/wording.h"

namespace ddprun::trainer {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t depth_max = 32;  // Below 40, where Linux stops to follow links.
constexpr std::size_t names_shown = 3;

// Endings that torchvision takes for images and ours does not; and one that neither does, of which
// people would wonder where they are.
constexpr const char* other_images[] = {".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif"};

bool is_other_image(std::string name) {
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return std::any_of(std::begin(other_images), std::end(other_images),
                     [&](const char* ending) { return name.ends_with(ending); });
}

// One folder with the files that lie in it directly.
struct Leaf {
  std::string path;  // From the class folder's parent: "cat/old".
  std::vector<std::string> files;
};

struct Tally {
  std::int64_t others = 0;
  std::string first_other;
};

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), names_shown); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > names_shown) text += fmt::format(" and {} more", names.size() - names_shown);
  return text;
}

[[noreturn]] void fail(const fs::path& folder, const std::error_code& error) {
  throw_unread("cannot read the folder " + folder.string(), error.value());
}

// Follows links to folders, as torchvision does; a link to a parent ends at depth_max.
void walk(const fs::path& root, const std::string& path, std::size_t depth,
          std::vector<Leaf>& leaves, Tally& tally) {
  if (depth > depth_max) {
    throw DataError(fmt::format("{} lies more than {} folders deep: is there a link to a parent?",
                                (root / path).string(), depth_max));
  }
  Leaf leaf{path, {}};
  std::vector<std::string> folders;
  std::error_code error;
  fs::directory_iterator entry(root / path, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().filename().string();
    std::error_code dangling;
    if (entry->is_directory(dangling)) {
      folders.push_back(std::move(name));
    } else if (has_image_ending(name)) {
      leaf.files.push_back(std::move(name));
    } else if (is_other_image(name)) {
      if (tally.others++ == 0) tally.first_other = path + "/" + name;
    }
  }
  if (error) fail(root / path, error);
  std::sort(leaf.files.begin(), leaf.files.end());
  if (!leaf.files.empty()) leaves.push_back(std::move(leaf));
  for (const std::string& name : folders) walk(root, path + "/" + name, depth + 1, leaves, tally);
}

// Of one class, in torchvision's order: by folder as text, then by file.
std::size_t add_class(const fs::path& root, const std::string& name, std::int32_t label,
                      ImageList& list, Tally& tally) {
  std::vector<Leaf> leaves;
  walk(root, name, 1, leaves, tally);
  std::sort(leaves.begin(), leaves.end(),
            [](const Leaf& a, const Leaf& b) { return a.path < b.path; });
  const std::size_t before = list.labels.size();
  for (const Leaf& leaf : leaves) {
    for (const std::string& file : leaf.files) {
      list.paths.add(leaf.path + "/" + file);
      list.labels.push_back(label);
    }
  }
  return list.labels.size() - before;
}

}  // namespace

std::vector<std::string> list_classes(const fs::path& folder) {
  std::vector<std::string> classes;
  std::size_t files = 0;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code dangling;
    if (entry->is_directory(dangling)) {
      classes.push_back(entry->path().filename().string());
    } else {
      ++files;
    }
  }
  if (error) fail(folder, error);
  if (classes.empty()) {
    throw DataError(fmt::format(
        "{} has no folders ({} files): every class is a folder of its own, {}/CLASS/x.jpg",
        folder.string(), files, folder.string()));
  }
  std::sort(classes.begin(), classes.end());
  return classes;
}

ImageList list_images(const fs::path& folder, const std::vector<std::string>& classes,
                      bool each_class, const std::string& what) {
  ImageList list;
  list.folder = folder;
  list.classes = static_cast<std::int64_t>(classes.size());
  list.class_names = classes;
  Tally tally;
  std::vector<std::string> unknown, empty;
  std::size_t filled = 0;
  for (const std::string& name : list_classes(folder)) {
    const auto known = std::lower_bound(classes.begin(), classes.end(), name);
    if (known == classes.end() || *known != name) {
      unknown.push_back(name);
      continue;
    }
    const auto label = static_cast<std::int32_t>(known - classes.begin());
    if (add_class(folder, name, label, list, tally) == 0) {
      empty.push_back(name);
    } else {
      ++filled;
    }
  }
  const std::string others =
      tally.others == 0 ? ""
                        : fmt::format("; {} of other formats, such as {}, left out",
                                      worker::counted(tally.others, "image"), tally.first_other);
  if (!unknown.empty()) {
    throw DataError(fmt::format("{} has classes that the training set has not: {}", folder.string(),
                                join(unknown)));
  }
  if (list.labels.empty() || (each_class && !empty.empty())) {
    throw DataError(
        fmt::format("no .jpg, .jpeg or .png files in {} of the {} class folders of {}: {}{}",
                    empty.size(), empty.size() + filled, folder.string(), join(empty), others));
  }
  list.description =
      fmt::format("{}: {} in {} from {}{}", what, worker::counted(std::ssize(list.labels), "image"),
                  worker::counted(static_cast<std::int64_t>(filled), "class", "classes"),
                  folder.string(), others);
  return list;
}

std::unique_ptr<Dataset> open_image_folder(const fs::path& folder,
                                           const fs::path& validation_folder, bool train) {
  const fs::path train_folder = folder / "train";
  const bool can_train = fs::is_directory(train_folder);
  if (train) {
    if (!can_train) {
      throw MissingPart(
          fmt::format("no folder {}: --data takes the folder that holds "
                      "train/CLASS/x.jpg and val/CLASS/x.jpg",
                      train_folder.string()));
    }
    return std::make_unique<ImageListDataset>(list_images(
        train_folder, list_classes(train_folder), /*each_class=*/true, "ImageFolder train"));
  }
  const fs::path images = validation_folder.empty() ? folder / "val" : validation_folder;
  if (!fs::is_directory(images)) {
    throw MissingPart(
        fmt::format("no folder {} with images to validate with: give one by --validation-data",
                    images.string()));
  }
  ImageList list = list_images(images, list_classes(can_train ? train_folder : images),
                               /*each_class=*/false, "ImageFolder val");
  if (!can_train) {
    list.description +=
        fmt::format(", numbered by these alone: there is no {}", train_folder.string());
  }
  return std::make_unique<ImageListDataset>(std::move(list));
}

}  // namespace ddprun::trainer
