// The table of data sets that can be downloaded.
#include "trainer/download/published_sets.h"

#include <stdexcept>

namespace ddprun::trainer {
namespace {

PublishedDownload mnist_file(const std::string& name, std::int64_t bytes, const std::string& md5) {
  // Not from yann.lecun.com, which has refused such downloads for years.
  return {.address = "https://ossci-datasets.s3.amazonaws.com/mnist/" + name + ".gz",
          .md5 = md5,
          .archive = false,
          .files = {{.name = name + ".gz", .bytes = bytes, .md5 = md5, .alternative = name}}};
}

PublishedSet mnist() {
  return {"MNIST",
          {mnist_file("train-images-idx3-ubyte", 9'912'422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
           mnist_file("train-labels-idx1-ubyte", 28'881, "d53e105ee54ea40749a09fcbcd1e9432"),
           mnist_file("t10k-images-idx3-ubyte", 1'648'877, "9fb629c4189551a2d022fa330f9573f3"),
           mnist_file("t10k-labels-idx1-ubyte", 4'542, "ec29112dd5afa0611ce80d1b7f02629c")}};
}

PublishedSet cifar10() {
  constexpr std::int64_t batch_bytes = 10'000 * (1 + 3 * 32 * 32);
  PublishedDownload all{.address = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                        .md5 = "c32a1d4ab5d03f1284b67883e8d87530",
                        .archive = true,
                        .files = {{.name = "test_batch.bin", .bytes = batch_bytes}}};
  for (const char* number : {"1", "2", "3", "4", "5"}) {
    all.files.push_back(
        {.name = std::string("data_batch_") + number + ".bin", .bytes = batch_bytes});
  }
  return {"CIFAR-10", {std::move(all)}};
}

PublishedSet stl10() {
  constexpr std::int64_t image_bytes = 3 * 96 * 96;
  // The archive's greater part, 100,000 images without labels, is not unpacked.
  return {"STL-10",
          {{.address = "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
            .md5 = "91f7769df0f17e558f3565bffb0c7dfb",
            .archive = true,
            .files = {{"train_X.bin", 5'000 * image_bytes, "918c2871b30a85fa023e0c44e0bee87f", ""},
                      {"train_y.bin", 5'000, "5a34089d4802c674881badbb80307741", ""},
                      {"test_X.bin", 8'000 * image_bytes, "7f263ba9f9e0b06b93213547f721ac82", ""},
                      {"test_y.bin", 8'000, "36f9794fa4beb8a2c72628de14fa638e", ""}}}}};
}

}  // namespace

PublishedSet published_set(std::string_view dataset) {
  if (dataset == "mnist") return mnist();
  if (dataset == "cifar10") return cifar10();
  if (dataset == "stl10") return stl10();
  throw std::invalid_argument("no download is known of the data set " + std::string(dataset));
}

std::string last_part(const std::string& address) { return address.substr(address.rfind('/') + 1); }

PublishedSet mirrored(PublishedSet set, const std::string& folder_address) {
  for (PublishedDownload& download : set.downloads) {
    const std::string slash = folder_address.ends_with('/') ? "" : "/";
    download.address = folder_address + slash + last_part(download.address);
  }
  return set;
}

}  // namespace ddprun::trainer
