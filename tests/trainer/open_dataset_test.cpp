// Which data set an option opens, and what is said where half of it is missing.
#include "trainer/open_dataset.h"

#include "tests/testing/catch.h"
#include "tests/trainer/data/made_up_sets.h"
#include "trainer/data/sets/memory_dataset.h"

using namespace ddprun::trainer;

namespace {

using Write = void (*)(const std::filesystem::path&, bool train, std::uint32_t images);

struct Set {
  DatasetKind kind;
  Write write;
  std::string train_file, test_file;
};

const std::vector<Set> sets{
    {DatasetKind::Mnist, &write_mnist, "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"},
    {DatasetKind::Cifar10, &write_cifar10, "data_batch_1.bin", "test_batch.bin"},
    {DatasetKind::Stl10, &write_stl10, "train_X.bin", "test_X.bin"},
};

TrainOptions options_for(const Set& set, const ScratchFolder& folder) {
  TrainOptions options;
  options.dataset = set.kind;
  options.data = folder.path();
  return options;
}

std::string error_of(const TrainOptions& options, bool train) {
  return message_of<DataError>([&] { open_dataset(options, train); });
}

}  // namespace

TEST_CASE("a folder of test images alone is told from one of nothing", "[trainer][data]") {
  for (const Set& set : sets) {
    const ScratchFolder folder;
    const TrainOptions options = options_for(set, folder);
    const std::string nothing = error_of(options, /*train=*/true);
    CHECK(contains(nothing, "no " + set.train_file));
    CHECK(contains(nothing, folder.path().string()));
    CHECK_FALSE(contains(nothing, "There is"));

    set.write(folder.path(), /*train=*/false, 3);

    CHECK(open_dataset(options, /*train=*/false)->size() == 3);
    const std::string error = error_of(options, /*train=*/true);
    CHECK(contains(error, "no " + set.train_file));
    CHECK(contains(error, "test: 3 images"));
    CHECK(contains(error, "enough for --evaluate, not for training"));
  }
}

TEST_CASE("a folder of training images alone says what they are good for", "[trainer][data]") {
  for (const Set& set : sets) {
    const ScratchFolder folder;
    TrainOptions options = options_for(set, folder);
    set.write(folder.path(), /*train=*/true, 4);

    const std::string in_training = error_of(options, /*train=*/false);
    options.evaluate = true;
    const std::string in_evaluation = error_of(options, /*train=*/false);

    CHECK(contains(in_training, "no " + set.test_file));
    CHECK(contains(in_training, "train: 4 images"));
    CHECK(contains(in_training, "with --no-validation, enough for training"));
    CHECK(contains(in_evaluation, "train: 4 images"));
    CHECK(contains(in_evaluation, "not what --evaluate counts"));
    CHECK(open_dataset(options, /*train=*/true)->size() == 4);
  }
}

TEST_CASE("damaged images are an error of their own, whatever else there is", "[trainer][data]") {
  for (const Set& set : sets) {
    const ScratchFolder folder;
    set.write(folder.path(), /*train=*/false, 3);
    write_bytes(folder / set.train_file, "no images");

    const std::string error = error_of(options_for(set, folder), /*train=*/true);

    CHECK_FALSE(error.empty());
    CHECK_FALSE(contains(error, "There is"));
  }
}

TEST_CASE("data that cannot be looked at is not called missing", "[trainer][data]") {
  const ScratchFolder folder;
  const auto loop = folder / "loop";
  std::filesystem::create_symlink("loop", loop);  // What the superuser cannot read either.
  std::vector<DatasetKind> kinds{DatasetKind::ImageFolder, DatasetKind::Csv};
  for (const Set& set : sets) kinds.push_back(set.kind);
  for (const DatasetKind kind : kinds) {
    TrainOptions options;
    options.dataset = kind;
    options.data = loop;
    const std::string error = error_of(options, /*train=*/true);
    INFO(name_of(kind) << ": " << error);
    CHECK(contains(error, "cannot look at " + loop.string()));
    CHECK(contains(error, "Too many levels of symbolic links"));
  }
}

TEST_CASE("data that the machine does not give was not given wrong", "[trainer][data]") {
  TrainOptions options;
  options.dataset = DatasetKind::Csv;
  options.data = "/proc/self/mem";  // Opens, and reads as a disk that fails.
  const std::string error =
      message_of<UnreadDataError>([&] { open_given(options, /*train=*/true); });
  CHECK(error ==
        "cannot read /proc/self/mem: Input/output error: the file system or this process "
        "failed, not the data");

  for (const int lasting : {ENOENT, ENOTDIR, EISDIR, EACCES, EPERM, ELOOP, ENAMETOOLONG}) {
    CHECK(is_of_the_name(lasting));
  }
  for (const int passing : {EIO, ESTALE, ETIMEDOUT, EMFILE, ENFILE, ENOMEM, EINTR}) {
    CHECK_FALSE(is_of_the_name(passing));
  }
}

TEST_CASE("data that does not fit the options was given wrong", "[trainer][data]") {
  const MemoryDataset oblong(MemoryDataset::Contents{.shape = {1, 20, 28}});
  TrainOptions options;
  CHECK(contains(message_of<UsageError>([&] { image_size_of(options, oblong); }),
                 "images of 20x28 pixels are not square: give --image-size"));
  options.image_size = 24;
  CHECK(image_size_of(options, oblong) == 24);

  options.data = "/nonexistent";
  CHECK(contains(message_of<UsageError>([&] { open_given(options, /*train=*/true); }),
                 "/nonexistent"));
}
