// Data as a few lines of a checkpoint's metadata, and the comparison of two such.
#include "trainer/data/data_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace ddprun::trainer {
namespace {

constexpr const char* images_key = "images";
constexpr const char* classes_key = "class_names";
constexpr const char* list_key = "image_list_xxh64";
// ImageNet's 21,841 classes take a fifth of it. Beyond, the checksum of the list, which has the
// names in it, must do: a header is read as a whole, and has a limit of its own.
constexpr std::size_t classes_bytes_max = std::size_t{1} << 20;

// Folder names may hold any bytes, metadata must be UTF-8, and the names need a separator: so all
// but plain ASCII is written as in addresses, %C3%A4.
std::string encoded(const std::string& name) {
  std::string text;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte > ' ' && byte < 0x7f && byte != '%' && byte != ',';
    text += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// "class 3 'cow' instead of 'cat'": the first of them, since a renamed folder moves all that
// follow.
std::string class_difference(std::string_view found, std::string_view expected) {
  const auto was = split(found);
  const auto is = split(expected);
  if (was.size() != is.size()) {
    return fmt::format("{} class names instead of {}", was.size(), is.size());
  }
  const auto first = std::mismatch(was.begin(), was.end(), is.begin());
  std::size_t others = 0;
  for (std::size_t i = 0; i < was.size(); ++i) others += was[i] != is[i];
  return fmt::format("class {} '{}' instead of '{}'{}", first.first - was.begin(), *first.first,
                     *first.second, others > 1 ? fmt::format(" and {} more", others - 1) : "");
}

}  // namespace

DataIdentity identify(const Dataset& dataset) {
  return {.images = dataset.size(),
          .class_names = dataset.class_names(),
          .list_checksum = fmt::format("{:016x}", dataset.list_checksum())};
}

DataIdentity identify_classes(const Dataset& dataset) {
  return {.class_names = dataset.class_names()};
}

std::string class_list(const DataIdentity& identity) {
  std::string text;
  for (const std::string& name : identity.class_names) {
    if (!text.empty()) text += ',';
    text += encoded(name);
  }
  return text;
}

Metadata data_metadata(const DataIdentity& identity) {
  Metadata metadata;
  if (!identity.list_checksum.empty()) {
    metadata[images_key] = std::to_string(identity.images);
    metadata[list_key] = identity.list_checksum;
  }
  const std::string classes = class_list(identity);
  if (!classes.empty() && classes.size() <= classes_bytes_max) metadata[classes_key] = classes;
  return metadata;
}

std::string data_difference(const Metadata& found, const DataIdentity& expected) {
  const Metadata own = data_metadata(expected);
  const auto differs = [&](const char* key) {
    return found.contains(key) && own.contains(key) && found.at(key) != own.at(key);
  };
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  if (differs(images_key)) {
    add(fmt::format("{} images to train with instead of {}", found.at(images_key),
                    own.at(images_key)));
  }
  if (differs(classes_key)) add(class_difference(found.at(classes_key), own.at(classes_key)));
  // Whatever changes the others changes this too; alone it tells of renamed or relabelled images.
  if (text.empty() && differs(list_key)) {
    add(fmt::format("as many images, but not the same names and labels (checksum {} instead of {})",
                    found.at(list_key), own.at(list_key)));
  }
  return text;
}

bool tells_data(const Metadata& found) { return found.contains(list_key); }

}  // namespace ddprun::trainer
