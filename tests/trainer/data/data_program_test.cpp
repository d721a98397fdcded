// The program `train` on folders of images, lists and STL-10, as two workers, on images that cannot
// be read, and on sets that come while it is started.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <future>

#include "rendezvous/contract/spare_channel.h"
#include "rendezvous/unique_fd.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/trainer/data/data_scratch.h"
#include "tests/trainer/data/jpeg_writer.h"
#include "tests/trainer/data/made_up_sets.h"
#include "tests/trainer/data/png_writer.h"
#include "tests/trainer/download/range_server.h"
#include "tests/trainer/train_program.h"

using namespace ddprun::trainer;
namespace fs = std::filesystem;

namespace {

// `train` as so many workers, with a metrics file in `folder`.
Result train(int workers, const std::string& arguments, const ScratchFolder& folder) {
  fs::remove(folder / "metrics");
  return run_train(workers,
                   "--model convnet --device cpu --lr 0.01 --print-freq 1 --metrics " +
                       in_quotes(folder / "metrics") + " " + arguments,
                   folder);
}

// Two classes of `images` each to train with, and of two to validate with.
void make_folder(const fs::path& root, unsigned images) {
  for (const std::string name : {"train/cat", "train/dog", "val/cat", "val/dog"}) {
    fs::create_directories(root / name);
    const unsigned count = name.starts_with("train") ? images : 2;
    for (unsigned i = 0; i < count; ++i) {
      write_bytes(root / name / (std::to_string(i) + ".jpg"),
                  jpeg({.width = 50 + 7 * i, .height = 90 - 5 * i}));
    }
  }
}

// Two workers, of which a shell may give each its own arguments by $RANK.
Result train_apart(const std::string& arguments, const ScratchFolder& folder) {
  const std::string worker =
      "exec " DDPRUN_TRAIN " --model convnet --device cpu --steps 1 --batch-size 2 " + arguments;
  const int code =
      run_command(by_itself + " '" DDPRUN_LAUNCHER "' --standalone --nproc-per-node 2 /bin/sh -c " +
                      in_quotes(worker),
                  folder / "out");
  return {code, content_of(folder / "out")};
}

int times_of(const std::string& text, const std::string& output) {
  int times = 0;
  for (std::size_t at = 0; (at = output.find(text, at)) != output.npos; at += text.size()) ++times;
  return times;
}

}  // namespace

TEST_CASE("two workers train on a folder of images, the same with any number of threads",
          "[trainer][program][data]") {
  const ScratchFolder folder;
  make_folder(folder / "set", 6);
  const std::string arguments = std::string("--dataset imagefolder --data") +
                                argument(folder / "set") +
                                " --image-size 28 --epochs 2 --batch-size 2";

  const Result result = train(2, arguments + " --workers 1", folder);

  INFO(result.output);
  REQUIRE(result.code == 0);
  CHECK(contains(result.output, "ImageFolder train: 12 images in 2 classes"));
  CHECK(contains(result.output, "random resized crop to 28x28"));
  CHECK(contains(result.output, "resized to 32, centre crop of 28"));
  const std::vector<double> first = losses(folder / "metrics");
  CHECK(first.size() == 6);
  CHECK(events(folder / "metrics", "validation").back()["images"] == 4);
  for (const std::string threads : {"0", "3"}) {
    REQUIRE(train(2, arguments + " --workers " + threads, folder).code == 0);
    CHECK(losses(folder / "metrics") == first);
  }
  const Result without_gpu = train(2, arguments + " --device-jpeg", folder);
  REQUIRE(without_gpu.code == 0);
  CHECK(losses(folder / "metrics") == first);
  CHECK(contains(without_gpu.output,
                 "warning: --device-jpeg: there is no GPU here; libjpeg decodes all images"));
  REQUIRE(train(2, arguments + " --augment none", folder).code == 0);
  CHECK(losses(folder / "metrics") != first);
}

TEST_CASE("neither a resumed run nor an evaluation takes other data for its own",
          "[trainer][program][data]") {
  const ScratchFolder folder;
  make_folder(folder / "set", 6);
  const std::string arguments = std::string("--dataset imagefolder --data") +
                                argument(folder / "set") + " --checkpoint-dir" +
                                argument(folder / "ck") + " --image-size 28 --batch-size 4";
  REQUIRE(train(1, arguments + " --epochs 1", folder).code == 0);
  fs::remove(folder / "set/train/dog/5.jpg");

  const Result fewer = train(1, arguments + " --epochs 2", folder);
  INFO(fewer.output);
  CHECK(fewer.code == 2);
  CHECK(contains(fewer.output, "12 images to train with instead of 11"));
  CHECK(train(1, arguments + " --evaluate", folder).code == 0);  // Of training images it uses none.

  // What was a dog has the label of a cat.
  for (const char* part : {"set/train", "set/val"}) {
    fs::rename(folder / part / "dog", folder / part / "adog");
  }
  for (const std::string what : {" --epochs 2", " --evaluate"}) {
    const Result renamed = train(1, arguments + what, folder);
    INFO(renamed.output);
    CHECK(renamed.code == 2);
    CHECK(contains(renamed.output, "class 0 'cat' instead of 'adog' and 1 more"));
  }
  const Result anyway = train(1, arguments + " --epochs 2 --resume-anyway", folder);
  INFO(anyway.output);
  CHECK(anyway.code == 0);
  CHECK(contains(anyway.output, "--resume-anyway goes on"));
  CHECK(contains(anyway.output, "resumed from"));
}

TEST_CASE("14.21: weights of ours are not evaluated with labels that mean other classes",
          "[trainer][program][data]") {
  const ScratchFolder folder;
  make_folder(folder / "set", 3);
  const std::string data = std::string("--dataset imagefolder --data") + argument(folder / "set") +
                           " --image-size 28 --batch-size 3";
  REQUIRE(train(1, data + " --epochs 1 --checkpoint-dir" + argument(folder / "ck"), folder).code ==
          0);
  const std::string weights = data + " --weights" + argument(folder / "ck/best.safetensors");
  REQUIRE(train(1, weights + " --evaluate", folder).code == 0);

  // Moves both labels by one, without an image that is another one.
  for (const char* part : {"set/train", "set/val"}) {
    fs::rename(folder / part / "cat", folder / part / "zebra");
  }
  const Result renamed = train(1, weights + " --evaluate", folder);
  INFO(renamed.output);
  CHECK(renamed.code == 2);
  CHECK(contains(renamed.output, "class 0 'cat' instead of 'dog' and 1 more"));
  const Result anyway = train(1, weights + " --evaluate --resume-anyway", folder);
  INFO(anyway.output);
  CHECK(anyway.code == 0);
  CHECK(contains(anyway.output, "--resume-anyway goes on"));
  // To learn other classes is what many load weights for.
  const Result tuned = train(1, weights + " --epochs 1", folder);
  INFO(tuned.output);
  CHECK(tuned.code == 0);
  CHECK(contains(tuned.output, "was trained with other labels: class 0 'cat' instead of 'dog'"));
}

TEST_CASE("two workers download MNIST before they train on it", "[trainer][program][data]") {
  const ScratchFolder folder;
  const RangeServer server(mnist);
  const std::string arguments = std::string("--dataset mnist --data") + argument(folder / "set") +
                                " --steps 1 --no-validation --download --download-from " +
                                server.address();

  const Result result = train(2, arguments, folder);

  INFO(result.output);
  CHECK(result.code == 0);
  CHECK(contains(result.output, "MNIST is in "));
  CHECK(server.requests().size() == 4);
  CHECK(content_of(folder / "set/t10k-labels-idx1-ubyte.gz") ==
        content_of(mnist + "/t10k-labels-idx1-ubyte.gz"));
}

TEST_CASE("a spare that opened a part of a set trains on what has been downloaded meanwhile",
          "[trainer][program][data]") {
  namespace rendezvous = ddprun::rendezvous;
  const ScratchFolder folder;
  const auto write_set = [&](std::uint32_t images) {
    fs::create_directories(folder / "set");
    for (const bool part : {true, false}) write_mnist(folder / "set", part, images);
  };
  write_set(8);
  std::future<Result> spare;  // Ends when its launcher, which is this test, hangs up.
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const rendezvous::UniqueFd launcher(ends[0]), inherited(ends[1]);
  ::fcntl(launcher.get(), F_SETFD, FD_CLOEXEC);
  const std::string environment = std::string(rendezvous::spare_variable) + "=" +
                                  std::to_string(inherited.get()) +
                                  " RANK=" + rendezvous::no_rank_yet;
  // Such files serve as well as the published ones, so nothing is fetched.
  const std::string arguments = std::string("--dataset mnist --data") + argument(folder / "set") +
                                " --download --model convnet --device cpu --batch-size 4 "
                                "--epochs 1 --metrics" +
                                argument(folder / "metrics");
  spare = std::async(std::launch::async,
                     [&] { return run_train(/*workers=*/0, arguments, folder, environment); });
  pollfd ready{launcher.get(), POLLIN, 0};
  const auto limit = ddprun::testing::patience(std::chrono::seconds(120));
  REQUIRE(::poll(&ready, 1, static_cast<int>(limit.count())) == 1);

  write_set(20);
  const std::string rank = rendezvous::rank_message(
      {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}});
  REQUIRE(::send(launcher.get(), rank.data(), rank.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(rank.size()));

  const Result result = spare.get();
  INFO(result.output);
  CHECK(result.code == 0);
  CHECK(contains(result.output, "MNIST train: 20 images"));
  CHECK(events(folder / "metrics", "start").at(0)["images"] == 20);
  CHECK(events(folder / "metrics", "validation").at(0)["images"] == 20);
}

TEST_CASE("data that was given wrong ends with 2", "[trainer][program][data]") {
  const ScratchFolder folder;
  const auto refused = [&](const std::string& arguments, const std::string& told) {
    const Result result = run_train(0, "--model convnet --device cpu " + arguments, folder);
    INFO(arguments << "\n" << result.output);
    CHECK(result.code == 2);
    CHECK(contains(result.output, told));
  };
  fs::create_directory(folder / "oblong");
  for (const std::string part : {"train", "t10k"}) {
    write_bytes(folder / ("oblong/" + part + "-images-idx3-ubyte"),
                big_endian(0x803) + big_endian(1) + big_endian(20) + big_endian(28) +
                    std::string(20 * 28, 'x'));
    write_bytes(folder / ("oblong/" + part + "-labels-idx1-ubyte"),
                idx_labels(std::string(1, '\0')));
  }
  refused("--dataset mnist --steps 1 --data" + argument(folder / "oblong"),
          "images of 20x28 pixels are not square");
  refused("--dataset mnist --print-sample-order --data" + argument(folder / "none"),
          "give the folder of the MNIST files");
  fs::create_directory(folder / "other");
  write_bytes(folder / "other/train-images-idx3-ubyte.gz", "mine");
  refused("--dataset mnist --steps 1 --download --data" + argument(folder / "other"),
          "it is not the published file");
}

TEST_CASE("a PNG that is called .jpg does not end a run", "[trainer][program][data]") {
  const ScratchFolder folder;
  make_folder(folder / "set", 3);
  write_bytes(folder / "set/train/cat/1.jpg", png({.colour = PNG_COLOR_TYPE_RGB_ALPHA}));
  write_bytes(folder / "set/val/dog/0.jpg", png({.colour = PNG_COLOR_TYPE_PALETTE}));

  const Result result =
      train(1,
            std::string("--dataset imagefolder --data") + argument(folder / "set") +
                " --image-size 28 --epochs 1 --batch-size 3",
            folder);

  INFO(result.output);
  CHECK(result.code == 0);
  CHECK(events(folder / "metrics", "validation").back()["images"] == 4);
}

TEST_CASE("two workers train on a list of images", "[trainer][program][data]") {
  const ScratchFolder folder;
  make_folder(folder / "set", 3);
  std::string list = "path,label\n";
  for (const std::string name : {"cat", "dog"}) {
    for (int i = 0; i < 3; ++i) {
      list += "set/train/" + name + "/" + std::to_string(i) + ".jpg," + name + "\n";
    }
  }
  write_bytes(folder / "train.csv", list);
  write_bytes(folder / "val.csv", "set/val/dog/0.jpg,dog\n");
  const std::string arguments = std::string("--dataset csv --data") +
                                argument(folder / "train.csv") +
                                " --image-size 28 --epochs 1 --batch-size 3";

  const Result result = train(
      2, arguments + std::string(" --validation-data") + argument(folder / "val.csv"), folder);

  INFO(result.output);
  REQUIRE(result.code == 0);
  CHECK(contains(result.output, "CSV train: 6 images in 2 classes"));
  CHECK(events(folder / "metrics", "validation").back()["images"] == 1);
  CHECK(contains(train(1, arguments, folder).output, "--validation-data FILE, or --no-validation"));
  write_bytes(folder / "train.csv", list + "set/train/cat/1.jpg\n");
  const Result bad = train(1, arguments + " --no-validation", folder);
  CHECK(bad.code == 2);
  CHECK(contains(bad.output, "train.csv, line 8: 1 field, expected 2"));
}

TEST_CASE("the samples of a loss that is not a number are listed by their files",
          "[trainer][program][data]") {
  const ScratchFolder folder;
  make_folder(folder / "set", 2);
  const std::string arguments =
      std::string("--dataset imagefolder --data") + argument(folder / "set") +
      " --image-size 28 --augment none --batch-size 4 --epochs 9 --lr 1e30 --no-validation" +
      " --checkpoint-dir" + argument(folder / "run");

  const Result result = train(0, arguments, folder);

  INFO(result.output);
  CHECK(result.code == 1);
  const std::string path = (folder / "run/bad_loss_step_2_rank_0.txt").string();
  CHECK(contains(result.output, "they are listed in " + path));
  // All four of the set, each with its number in the set's order.
  const std::string list = content_of(path);
  const std::vector<std::string> names = {"cat/0.jpg", "cat/1.jpg", "dog/0.jpg", "dog/1.jpg"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    const fs::path file = folder / "set" / "train" / names[i];
    CHECK(contains(list, std::to_string(i) + " " + file.string() + "\n"));
  }
}

TEST_CASE("two workers train on STL-10 at another size", "[trainer][program][data]") {
  const ScratchFolder folder;
  fs::create_directory(folder / "set");
  for (const bool part : {true, false}) write_stl10(folder / "set", part, 8);

  const Result result = train(2,
                              std::string("--dataset stl10 --data") + argument(folder / "set") +
                                  " --image-size 112 --epochs 1 --batch-size 2",
                              folder);

  INFO(result.output);
  REQUIRE(result.code == 0);
  CHECK(contains(result.output, "STL-10 train: 8 images of 96x96"));
  CHECK(contains(result.output, "the full set has 5000"));
  CHECK(events(folder / "metrics", "validation").back()["images"] == 8);
}

TEST_CASE("test images alone are enough to evaluate, and training says what is missing",
          "[trainer][program][data]") {
  struct Set {
    std::string name, test_part;
    std::function<void(const fs::path&, bool train)> write;
  };
  const std::vector<Set> sets{
      {"mnist", "MNIST test: 6 images of 28x28",
       [](const fs::path& folder, bool train) { write_mnist(folder, train, 6); }},
      {"cifar10", "CIFAR-10 test: 6 images of 32x32 in 1 file",
       [](const fs::path& folder, bool train) { write_cifar10(folder, train, 6); }},
      {"stl10", "STL-10 test: 6 images of 96x96",
       [](const fs::path& folder, bool train) { write_stl10(folder, train, 6); }},
      {"imagefolder", "ImageFolder val: 4 images in 2 classes",
       [](const fs::path& folder, bool train) {
         if (train) make_folder(folder, 3);
       }}};
  for (const Set& set : sets) {
    const ScratchFolder folder;
    const fs::path both = folder / "both", alone = folder / "alone";
    for (const fs::path& data : {both, alone}) {
      fs::create_directory(data);
      set.write(data, /*train=*/false);
    }
    set.write(both, /*train=*/true);
    if (set.name == "imagefolder")
      fs::copy(both / "val", alone / "val", fs::copy_options::recursive);
    // That two workers agree on such a folder does not depend on the format of the files.
    const int workers = set.name == "mnist" ? 2 : 0;
    const std::string run = "--dataset " + set.name +
                            " --image-size 28 --epochs 1 --batch-size 3 " + "--checkpoint-dir " +
                            in_quotes(folder / "checkpoints") + " --data";
    const Result trained = train(workers, run + argument(both), folder);
    INFO(trained.output);
    REQUIRE(trained.code == 0);
    const Json expected = events(folder / "metrics", "validation").back();

    const Result evaluated = train(workers, run + argument(alone) + " --evaluate", folder);
    INFO(evaluated.output);
    REQUIRE(evaluated.code == 0);
    CHECK(contains(evaluated.output, set.test_part));
    const Json found = events(folder / "metrics", "validation").back();
    CHECK(found["loss"] == expected["loss"]);
    CHECK(found["images"] == expected["images"]);

    const Result refused = train(0, run + argument(alone), folder);
    INFO(refused.output);
    CHECK(refused.code == 2);
    CHECK(contains(refused.output, "There is " + set.test_part));
    CHECK(contains(refused.output, "enough for --evaluate, not for training"));
  }
}

TEST_CASE("the real part of STL-10 is told from the whole", "[trainer][program][data]") {
  const auto set = shared_data("stl10");
  if (!set) DDPRUN_SKIP(no_shared_data);
  const ScratchFolder folder;
  const std::string arguments = "--dataset stl10 --epochs 1 --batch-size 5 --data ";
  const Result missing = train(1, arguments + argument(*set), folder);
  CHECK(missing.code == 2);
  CHECK(contains(missing.output, "no train_X.bin"));
  CHECK(contains(missing.output, "There is STL-10 test: 10 images of 96x96"));
  CHECK(contains(missing.output, "enough for --evaluate, not for training"));

  // To train on, and to validate with, the only ten images there are.
  fs::create_directory(folder / "set");
  for (const std::string part : {"X", "y"}) {
    const fs::path file = *set / ("subset10_test_" + part + ".bin");
    fs::create_symlink(fs::absolute(file), folder / "set" / ("test_" + part + ".bin"));
    fs::create_symlink(fs::absolute(file), folder / "set" / ("train_" + part + ".bin"));
  }
  const Result result = train(2, arguments + argument(folder / "set"), folder);
  INFO(result.output);
  CHECK(result.code == 0);
  CHECK(contains(result.output, "STL-10 train: 10 images of 96x96"));
}

TEST_CASE("an image that cannot be read ends the run with its name, or is reported",
          "[trainer][program][data]") {
  const ScratchFolder folder;
  make_folder(folder / "set", 6);
  write_bytes(folder / "set/train/cat/3.jpg", "");
  write_bytes(folder / "set/train/dog/0.jpg", jpeg({}).substr(0, 400));
  write_bytes(folder / "set/val/dog/1.jpg", "text");
  const std::string arguments = std::string("--dataset imagefolder --data") +
                                argument(folder / "set") +
                                " --image-size 28 --epochs 2 --batch-size 2 ";

  // Both fail, and the launcher keeps the message that it has not told.
  const Result failed = run_train(2, "--model convnet --device cpu " + arguments, folder,
                                  "TMPDIR=" + in_quotes(folder / ".") + " ");
  CHECK(failed.code == 1);
  CHECK(contains(failed.output, "cannot read image"));
  CHECK(contains(failed.output, "--on-bad-image skip"));

  const Result result = train(2, arguments + "--on-bad-image skip", folder);
  INFO(result.output);
  REQUIRE(result.code == 0);
  CHECK(contains(result.output, (folder / "set/train/cat/3.jpg").string() + ": it is empty"));
  CHECK(contains(result.output, "dog/0.jpg: it is truncated"));
  CHECK(contains(result.output, "2 images could not be read and were replaced in epoch 1"));
  CHECK(contains(result.output, "2 images could not be read and were replaced in epoch 2"));
  CHECK(contains(result.output, "1 image could not be read and was left out of the validation"));
  CHECK(events(folder / "metrics", "train").size() == 6);
  CHECK(events(folder / "metrics", "validation").back()["images"] == 3);
}

TEST_CASE("images that cannot be read are told once, the same whoever has which shards",
          "[trainer][program][data][shards]") {
  const ScratchFolder folder;
  make_folder(folder / "set", 14);
  for (const char* animal : {"cat", "dog"}) {
    for (int i = 0; i < 6; ++i) {
      write_bytes(folder / "set/train" / animal / (std::to_string(i) + ".jpg"), "");
    }
  }
  write_bytes(folder / "set/val/dog/1.jpg", "text");
  // The average is validated, too, with the same images.
  const std::string arguments =
      std::string("--dataset imagefolder --data") + argument(folder / "set") +
      " --image-size 28 --epochs 2 --batch-size 3 --shards 4 --ema 0.9 --on-bad-image skip";
  std::vector<std::string> told;
  for (const int workers : {1, 2, 4}) {
    const Result result = train(workers, arguments, folder);
    INFO(workers << " workers: " << result.output);
    REQUIRE(result.code == 0);
    const std::string replaced = "12 images could not be read and were replaced in epoch ";
    for (const std::string epoch : {"1", "2"}) {
      CHECK(times_of(replaced + epoch, result.output) == 1);
      CHECK(
          times_of("1 image could not be read and was left out of the validation in epoch " + epoch,
                   result.output) == 1);
    }
    // Ten of them by name, and the one of the validation.
    CHECK(times_of(": it is empty", result.output) == 2 * 10);
    CHECK(times_of("and 2 more", result.output) == 2);
    CHECK(times_of("val/dog/1.jpg: ", result.output) == 2);
    const auto begin = result.output.find(replaced);
    const std::string more = "and 2 more";
    told.push_back(result.output.substr(begin, result.output.find(more, begin) - begin));
    CHECK(told.back() == told.front());
    CHECK(told.back().find("cat/0.jpg") < told.back().find("cat/1.jpg"));  // In the set's order.
  }
}

TEST_CASE("workers whose data or labels differ do not train together", "[trainer][program][data]") {
  const ScratchFolder folder;
  for (const std::string rank : {"0", "1"}) make_folder(folder / rank, 2);
  const std::string set = "--dataset imagefolder --image-size 28 --data " + folder.path().string();
  REQUIRE(train_apart(set + "/$RANK", folder).code == 0);
  for (const auto& [option, told] : std::vector<std::pair<std::string, std::string>>{
           {"--val-resize-size $((32 + RANK))", "validation images prepared as"},
           {"--crop-ratio 0.5,$((1 + RANK))", "--crop-ratio 0.5,2"}}) {
    const Result result = train_apart(set + "/0 " + option, folder);
    INFO(result.output);
    CHECK(result.code == 2);
    CHECK(contains(result.output, told));
  }

  // As many images of as many classes: a dog of one is a cat of the other.
  for (const std::string part : {"1/train", "1/val"}) {
    fs::rename(folder / (part + "/cat"), folder / (part + "/zebra"));
  }
  const Result result = train_apart(set + "/$RANK", folder);
  INFO(result.output);
  CHECK(result.code == 2);
  CHECK(contains(result.output, "rank 1 has class 0 dog where rank 0 has cat"));
}

TEST_CASE("each worker looks at its own data where sums are to be verified",
          "[trainer][program][data]") {
  const ScratchFolder folder;
  for (const std::string rank : {"0", "1"}) {
    fs::create_directory(folder / rank);
    write_mnist(folder / rank, /*train=*/true, 8);
    const std::string sums = "cd " + in_quotes(folder / rank) + " && sha256sum train-*";
    REQUIRE(run_command(sums, folder / (rank + "/SHA256SUMS")) == 0);
  }
  const std::string arguments = "--dataset mnist --no-validation --image-size 28 --verify-data " +
                                std::string("--data ") + folder.path().string() + "/$RANK";
  const Result sound = train_apart(arguments, folder);
  INFO(sound.output);
  REQUIRE(sound.code == 0);
  CHECK(contains(sound.output, "2 files in"));

  write_mnist(folder / "1", /*train=*/true, 9);
  const Result damaged = train_apart(arguments, folder);
  INFO(damaged.output);
  CHECK(damaged.code == 2);
  CHECK(contains(damaged.output, "has the SHA-256"));

  fs::remove(folder / "1/SHA256SUMS");
  const Result unlisted = train_apart(arguments, folder);
  INFO(unlisted.output);
  CHECK(unlisted.code == 2);
  CHECK(contains(unlisted.output, "there is no SHA256SUMS in " + (folder / "1").string()));
}
