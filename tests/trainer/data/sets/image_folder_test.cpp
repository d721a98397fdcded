// Trees of image files: torchvision's classes and order, and trees that are not as they should be.
#include "trainer/data/sets/image_folder.h"

#include <sys/stat.h>

#include "tests/testing/catch.h"
#include "tests/trainer/data/data_scratch.h"
#include "tests/trainer/data/jpeg_writer.h"

using namespace ddprun::trainer;
namespace fs = std::filesystem;

namespace {

void put(const fs::path& path, const std::string& bytes = "x") {
  fs::create_directories(path.parent_path());
  write_bytes(path, bytes);
}

std::string folder_error(const fs::path& folder, bool train = true,
                         const fs::path& validation = "") {
  return message_of<DataError>([&] { open_image_folder(folder, validation, train); });
}

const ImageListDataset& list_of(const std::unique_ptr<Dataset>& dataset) {
  return dynamic_cast<const ImageListDataset&>(*dataset);
}

}  // namespace

TEST_CASE("classes and images come in torchvision's order", "[trainer][data][imagefolder]") {
  const ScratchFolder folder;
  for (const char* name :
       {"b/2.jpg", "b/10.JPG", "b/deep/er/x.jpeg", "b/deep-er/y.jpg", "b/deep/a.Jpeg", "B/1.jpg",
        "a c/1.jpg", "b/notes.txt", "b/more.PNG", "b/other.BMP", "file.jpg"}) {
    put(folder / "train" / name);
  }

  const auto dataset = open_image_folder(folder.path(), "", true);

  // sorted() of Python compares code points: "B" < "a c" < "b", and "b/deep-er" < "b/deep/er".
  std::vector<std::string> paths;
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < dataset->size(); ++i) {
    paths.push_back(fs::relative(list_of(dataset).path(i), folder / "train").string());
    labels.push_back(dataset->label(i));
  }
  CHECK(paths == std::vector<std::string>{"B/1.jpg", "a c/1.jpg", "b/10.JPG", "b/2.jpg",
                                          "b/more.PNG", "b/deep/a.Jpeg", "b/deep-er/y.jpg",
                                          "b/deep/er/x.jpeg"});
  CHECK(labels == std::vector<std::int64_t>{0, 1, 2, 2, 2, 2, 2, 2});
  CHECK(dataset->classes() == 3);
  CHECK(dataset->class_names() == std::vector<std::string>{"B", "a c", "b"});
  CHECK(contains(dataset->description(), "8 images in 3 classes"));
  CHECK(contains(dataset->description(), "1 image of other formats, such as b/other.BMP"));
}

TEST_CASE("a class has the same label in both sets", "[trainer][data][imagefolder]") {
  const ScratchFolder folder;
  for (const char* name : {"train/a/1.jpg", "train/b/1.jpg", "train/c/1.jpg", "val/c/1.jpg"}) {
    put(folder / name);
  }
  fs::create_directories(folder / "val/b");  // None of a class are enough to validate with.

  const auto dataset = open_image_folder(folder.path(), "", false);

  REQUIRE(dataset->size() == 1);
  CHECK(dataset->label(0) == 2);
  CHECK(dataset->classes() == 3);
  CHECK_FALSE(contains(dataset->description(), "numbered by these alone"));
  for (const char* name : {"d", "e", "f"}) put(folder / "val" / name / "1.jpg");
  CHECK(folder_error(folder.path(), false)
            .ends_with("classes that the training set has not: d, e, f"));
  put(folder / "val/g/1.jpg");
  CHECK(contains(folder_error(folder.path(), false), "d, e, f and 1 more"));
  put(folder / "elsewhere/b/1.jpg");
  CHECK(open_image_folder(folder.path(), folder / "elsewhere", false)->label(0) == 1);
  fs::remove_all(folder / "train");
  const auto alone = open_image_folder(folder.path(), folder / "elsewhere", false);
  CHECK(alone->label(0) == 0);
  CHECK(contains(alone->description(), "numbered by these alone: there is no "));
}

TEST_CASE("trees that are not as they should be are refused", "[trainer][data][imagefolder]") {
  const ScratchFolder folder;
  CHECK(contains(folder_error(folder.path()), "train/CLASS/x.jpg"));
  put(folder / "train/1.jpg");
  CHECK(contains(folder_error(folder.path()), "has no folders (1 files)"));
  put(folder / "train/full/1.jpg");
  fs::create_directories(folder / "train/empty/deep");
  CHECK(contains(folder_error(folder.path()), "1 of the 2 class folders"));
  CHECK(contains(folder_error(folder.path()), "empty"));
  fs::remove_all(folder / "train/empty");
  CHECK(folder_error(folder.path()) == "");
  CHECK(contains(folder_error(folder.path(), false), "--validation-data"));
  put(folder / "val/full/1.txt");
  CHECK(contains(folder_error(folder.path(), false), "no .jpg"));
}

TEST_CASE("a link to a parent folder does not hang", "[trainer][data][imagefolder]") {
  const ScratchFolder folder;
  put(folder / "train/a/1.jpg");
  fs::create_directory_symlink(folder / "train/a", folder / "train/a/again");

  CHECK(contains(folder_error(folder.path()), "is there a link to a parent?"));
}

TEST_CASE("seventy thousand classes are read", "[trainer][data][imagefolder]") {
  // In memory: disks take minutes for so many folders, and some file systems allow 65,000 in one.
  std::string pattern = "/dev/shm/ddprun-test-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) DDPRUN_SKIP("no /dev/shm to write to");
  const std::unique_ptr<const std::string, void (*)(const std::string*)> folder(
      &pattern, [](const std::string* path) {
        std::error_code ignored;
        fs::remove_all(*path, ignored);
      });
  constexpr std::int64_t classes = 70'000;
  const std::string root = pattern + "/train";
  fs::create_directory(root);
  for (std::int64_t i = 0; i < classes; ++i) {
    const std::string name = root + "/" + std::to_string(100'000 + i);
    if (::mkdir(name.c_str(), 0700) != 0) DDPRUN_SKIP("/dev/shm has no room for so many folders");
    write_bytes(name + "/1.jpg", i + 1 == classes ? jpeg({.width = 8, .height = 8}) : "");
  }

  const auto dataset = open_image_folder(pattern, "", true);

  CHECK(dataset->classes() == classes);
  CHECK(dataset->label(classes - 1) == classes - 1);
  CHECK(read_planes(*dataset, classes - 1).size() == 3 * 64);
}

TEST_CASE("an image that cannot be read is named with the reason", "[trainer][data][imagefolder]") {
  const ScratchFolder folder;
  put(folder / "train/a/0.jpg", jpeg({}));
  put(folder / "train/a/1.jpg", "");
  put(folder / "train/a/2.jpg", "text");
  put(folder / "train/a/3.jpg", jpeg({}).substr(0, 700));
  fs::create_symlink("nowhere", folder / "train/a/4.jpg");
  REQUIRE(::mkfifo((folder / "train/a/5.jpg").c_str(), 0600) == 0);
  put(folder / "train/a/6.jpg");
  fs::resize_file(folder / "train/a/6.jpg", (std::uintmax_t{1} << 30) + 1);  // A hole.
  const auto dataset = open_image_folder(folder.path(), "", true);
  const auto error = [&](std::int64_t index) {
    return message_of<ImageError>([&] { read_planes(*dataset, index); });
  };

  REQUIRE(dataset->size() == 7);
  CHECK(error(0) == "");
  CHECK(error(1) ==
        "cannot read image 1, " + (folder / "train/a/1.jpg").string() + ": it is empty");
  CHECK(contains(error(2), "2.jpg: it is neither JPEG nor PNG"));
  CHECK(contains(error(3), "3.jpg: it is truncated"));
  CHECK(contains(error(4), "4.jpg: cannot open it: No such file"));
  CHECK(contains(error(5), "5.jpg: it is not a file"));
  CHECK(contains(error(6), "6.jpg: it has 1073741825 bytes; at most "));
}

TEST_CASE("a folder as ImageNet's has all images decoded as Pillow does",
          "[trainer][data][imagefolder][oracle]") {
  const auto archive = shared_data("imagefolder/sign_digits_400.tar");
  if (!archive) DDPRUN_SKIP(no_shared_data);
  if (!has_oracle()) DDPRUN_SKIP("no Pillow in .deps/peer");
  const ScratchFolder folder;
  REQUIRE(run_command(std::string("tar -x -f") + argument(*archive) + std::string(" -C") +
                          argument(folder.path()),
                      folder / "log") == 0);
  const auto dataset = open_image_folder(folder / "sign_digits", "", true);
  REQUIRE(dataset->size() == 320);
  CHECK(dataset->classes() == 10);
  std::string names;
  const auto& list = list_of(dataset);
  for (std::int64_t i = 0; i < 320; ++i) names += argument(list.path(i));
  REQUIRE(run_data_oracle("decode", folder / "decoded", names, folder / "log") == 0);
  const auto expected = read_oracle_images(folder / "decoded");
  REQUIRE(expected.size() == 320);

  const auto reader = dataset->make_reader();
  for (std::int64_t i = 0; i < 320; ++i) {
    INFO(list.path(i).string());
    const ImageSize size = reader->open(i);
    const DecodedImage image = reader->decode({.height = size.height, .width = size.width});
    const OracleImage& theirs = expected[static_cast<std::size_t>(i)];
    REQUIRE(size == theirs.size);
    CHECK(differences(interleave(image.pixels), theirs.pixels) == 0);
  }
}
