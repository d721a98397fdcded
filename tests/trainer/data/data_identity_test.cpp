// Which data counts as the same for a checkpoint, and what is said where it is not.
#include "trainer/data/data_identity.h"

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"
#include "trainer/data/sets/image_list.h"
#include "trainer/data/sets/synthetic.h"

using namespace ddprun::trainer;

namespace {

ImageListDataset list_of(const std::vector<std::string>& classes,
                         const std::vector<std::pair<std::string, std::int32_t>>& images,
                         const std::string& folder = "/data") {
  ImageList list;
  list.folder = folder;
  list.classes = static_cast<std::int64_t>(classes.size());
  list.class_names = classes;
  for (const auto& [path, label] : images) {
    list.paths.add(path);
    list.labels.push_back(label);
  }
  return ImageListDataset(std::move(list));
}

std::string difference(const Dataset& then, const Dataset& now) {
  return data_difference(data_metadata(identify(then)), identify(now));
}

}  // namespace

TEST_CASE("the same list in another folder is the same data", "[trainer][data][identity]") {
  const auto here = list_of({"cat", "dog"}, {{"cat/1.jpg", 0}, {"dog/1.jpg", 1}}, "/here");
  const auto there = list_of({"cat", "dog"}, {{"cat/1.jpg", 0}, {"dog/1.jpg", 1}}, "/there");
  CHECK(difference(here, there) == "");
  const SyntheticDataset drawn({.size = 640, .classes = 10});
  CHECK(difference(drawn, SyntheticDataset({.size = 640, .classes = 10})) == "");
}

TEST_CASE("other data is told by what a person can see of it", "[trainer][data][identity]") {
  const auto then =
      list_of({"cat", "cow", "dog"}, {{"cat/1.jpg", 0}, {"cow/1.jpg", 1}, {"dog/1.jpg", 2}});

  // cow became ox, and so dog has the label that cow had.
  const std::string renamed = difference(
      then, list_of({"cat", "dog", "ox"}, {{"cat/1.jpg", 0}, {"dog/1.jpg", 1}, {"ox/1.jpg", 2}}));
  CHECK(renamed == "class 1 'cow' instead of 'dog' and 1 more");
  CHECK(difference(then, list_of({"cat", "cow"}, {{"cat/1.jpg", 0}, {"cow/1.jpg", 1}})) ==
        "3 images to train with instead of 2, 3 class names instead of 2");
  CHECK(contains(difference(then, list_of({"cat", "cow", "dog"},
                                          {{"cat/1.jpg", 0}, {"cow/2.jpg", 1}, {"dog/1.jpg", 2}})),
                 "as many images, but not the same names and labels"));
  CHECK(contains(difference(then, list_of({"cat", "cow", "dog"},
                                          {{"cat/1.jpg", 0}, {"cow/1.jpg", 2}, {"dog/1.jpg", 1}})),
                 "as many images, but not the same names and labels"));
  CHECK(difference(SyntheticDataset({.size = 640}), SyntheticDataset({.size = 60'000})) ==
        "640 images to train with instead of 60000");
}

TEST_CASE("an evaluation needs the same classes and no list", "[trainer][data][identity]") {
  const auto trained = list_of({"cat", "dog"}, {{"cat/1.jpg", 0}, {"dog/1.jpg", 1}});
  const auto other_images = list_of({"cat", "dog"}, {{"dog/new.jpg", 1}});
  const auto other_classes = list_of({"cat", "hen"}, {{"hen/new.jpg", 1}});
  const Metadata metadata = data_metadata(identify(trained));

  CHECK(data_difference(metadata, identify_classes(other_images)) == "");
  CHECK(data_difference(metadata, identify_classes(other_classes)) ==
        "class 1 'dog' instead of 'hen'");
  CHECK(data_difference({}, identify(trained)) == "");  // A file of an older version.
  CHECK_FALSE(tells_data({}));
  CHECK(tells_data(metadata));
}

TEST_CASE("names that metadata have no room for still tell data apart",
          "[trainer][data][identity]") {
  const std::string longest(std::size_t{1} << 20, 'x');
  const auto fits = list_of({longest}, {{"1.jpg", 0}});
  const auto beyond = list_of({longest + "x"}, {{"1.jpg", 0}});
  const auto other = list_of({longest + "y"}, {{"1.jpg", 0}});

  CHECK(data_metadata(identify(fits)).at("class_names") == longest);
  CHECK_FALSE(data_metadata(identify(beyond)).contains("class_names"));
  CHECK(contains(difference(beyond, other), "not the same names and labels"));
}

TEST_CASE("class names of any bytes become metadata of plain text", "[trainer][data][identity]") {
  const auto odd = list_of({"a,b", "a%2Cb", "K\xc3\xa4tzchen", "\xff\n"}, {{"a,b/1.jpg", 0}});
  const Metadata metadata = data_metadata(identify(odd));

  CHECK(metadata.at("class_names") == "a%2Cb,a%252Cb,K%C3%A4tzchen,%FF%0A");
  CHECK(data_difference(metadata, identify(odd)) == "");
}
