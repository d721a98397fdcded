// best.safetensors of the program `train`: which accuracy counts, and when it is written.
#include <string>

#include "tests/testing/catch.h"
#include "tests/testing/process.h"
#include "tests/trainer/checkpoint/checkpoint_runs.h"

using namespace ddprun::trainer;
using namespace ddprun::testing;

namespace {

// Learns some of its four kinds in each of the first epochs.
Arguments learning_run(const ScratchFolder& folder, const Arguments& more) {
  return run_in(folder, {"--dataset", "synthetic", "--synthetic-images", "400",
                         "--synthetic-classes", "4", "--batch-size", "4"}) +
         more;
}

double best_in(const std::filesystem::path& file) {
  return std::stod(metadata_of(file)["best_prec1"].get<std::string>());
}

constexpr const char* no_step = "1e-9";  // A learning rate by which a model stays as it is.

}  // namespace

TEST_CASE("what is best is known to the checkpoint of the same step",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  // Ends in the middle of an epoch, at a step that is saved before its validation.
  const auto run = run_with(
      1, small_run(folder, {"--batch-size", "10", "--steps", "25", "--checkpoint-every", "5"}));
  INFO(run.output);
  REQUIRE(run.status == 0);
  const double best = events(folder / "metrics", "validation").back()["best_prec1"];
  REQUIRE(best > 0);
  const Json saved = metadata_of(folder / "checkpoints/epoch_0002_step_0000025.safetensors");
  CHECK(std::stod(saved["best_prec1"].get<std::string>()) == Approx(best));
}

TEST_CASE("a run that was stopped before its last validation has its accuracy afterwards",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  const Arguments options{"--batch-size", "10", "--steps", "25"};
  REQUIRE(run_with(1, small_run(folder, options + Arguments{"--no-validation"})).status == 0);
  const auto saved = [&] { return events(folder / "metrics", "checkpoint").size(); };
  const auto before = saved();
  for (int start = 0; start < 2; ++start) {
    const auto result = run_with(1, small_run(folder, options));
    INFO(result.output);
    CHECK(result.status == 0);
    CHECK_FALSE(contains(result.output, "best top-1 0.00"));
    CHECK(std::filesystem::exists(folder / "checkpoints/best.safetensors"));
    CHECK(saved() == before + 1);  // The second start has no news.
  }
}

TEST_CASE("a run that goes on in another folder has its best weights there",
          "[trainer][program][checkpoint]") {
  // All images are taken for the kind that training has most of: of `easy` nearly all are right.
  const ScratchFolder data, before, now;
  for (const auto& [set, cats] : {std::pair("easy", 7), std::pair("hard", 1)}) {
    write_images(data / set / "train/cat", 31);
    write_images(data / set / "train/dog", 1);
    write_images(data / set / "val/cat", cats);
    write_images(data / set / "val/dog", 8 - cats);
  }
  const auto first = run_with(1, folder_run(before, data / "easy", {"--epochs", "1"}));
  INFO(first.output);
  REQUIRE(first.status == 0);
  const std::string last =
      files_ending_with(before / "checkpoints", "_0000008.safetensors").front();

  const auto second = run_with(
      1, folder_run(
             now, data / "hard",
             {"--epochs", "2", "--resume", before / ("checkpoints/" + last), "--resume-anyway"}));
  INFO(second.output);
  REQUIRE(second.status == 0);
  const auto accuracy = [](const ScratchFolder& folder) {
    return events(folder / "metrics", "validation").back()["prec1"].get<double>();
  };
  REQUIRE(accuracy(now) < accuracy(before));
  CHECK(std::filesystem::exists(now / "checkpoints/best.safetensors"));
  CHECK(events(now / "metrics", "validation").back()["best_prec1"] == accuracy(now));
}

TEST_CASE("a run that goes back to an older checkpoint keeps the best weights",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  const Arguments kept{"--keep-checkpoints", "9"};
  const auto first =
      run_with(1, learning_run(folder, kept + Arguments{"--epochs", "3", "--lr", "1e-3"}));
  INFO(first.output);
  REQUIRE(first.status == 0);
  const auto best = folder / "checkpoints/best.safetensors";
  const std::string bytes = content_of(best);
  const double known = best_in(best);
  const double early = best_in(folder / "checkpoints/epoch_0001_step_0000100.safetensors");
  REQUIRE(early < known);

  for (const std::string name : {"epoch_0002_step_0000200", "epoch_0003_step_0000300"}) {
    std::filesystem::remove(folder / ("checkpoints/" + name + ".safetensors"));
  }
  const auto back =
      run_with(1, learning_run(folder, kept + Arguments{"--epochs", "2", "--lr", no_step}));
  INFO(back.output);
  CHECK(back.status == 0);
  CHECK(contains(back.output, "best.safetensors has a top-1 of"));
  CHECK(content_of(best) == bytes);
  CHECK(best_in(folder / "checkpoints/epoch_0002_step_0000200.safetensors") == known);
}

TEST_CASE("what is better than the best of this folder is written, whatever is known from another",
          "[trainer][program][checkpoint]") {
  const ScratchFolder good, poor;
  const auto first = run_with(1, learning_run(good, {"--epochs", "3", "--lr", "1e-3"}));
  const auto second = run_with(1, learning_run(poor, {"--epochs", "1", "--lr", no_step}));
  REQUIRE((first.status == 0 && second.status == 0));
  const auto best = poor / "checkpoints/best.safetensors";
  const double before = best_in(best);
  REQUIRE(before < best_in(good / "checkpoints/best.safetensors"));

  // In a restart, since a first start with checkpoints of another training is refused.
  const auto on =
      run_restarted(learning_run(poor, {"--epochs", "4", "--lr", no_step, "--resume",
                                        good / "checkpoints/epoch_0003_step_0000300.safetensors"}));
  INFO(on.output);
  CHECK(on.status == 0);
  CHECK(best_in(best) > before);
  CHECK(best_in(best) == events(poor / "metrics", "validation").back()["best_prec1"]);
}

TEST_CASE("of equal accuracies the first is the best", "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  const auto run = run_with(1, learning_run(folder, {"--epochs", "3", "--lr", no_step}));
  INFO(run.output);
  REQUIRE(run.status == 0);
  const auto validations = events(folder / "metrics", "validation");
  REQUIRE(validations.size() == 3);
  REQUIRE(validations[0]["prec1"] > 0);
  for (const Json& validation : validations) {
    REQUIRE(validation["prec1"] == validations[0]["prec1"]);
  }
  CHECK(metadata_of(folder / "checkpoints/best.safetensors")["step"] == "100");
  CHECK(count_of(run.output, ", best\n") == 1);

  // Where there is none the next does that is no worse, also within a run.
  const ScratchFolder lost;
  Process process(learning_run(lost, {"--epochs", "1000", "--lr", no_step}));
  const auto best = lost / "checkpoints/best.safetensors";
  REQUIRE(process.wait_until([&] { return std::filesystem::exists(best); }, run_limit));
  std::filesystem::remove(best);
  CHECK(process.wait_until([&] { return std::filesystem::exists(best); }, run_limit));
}

TEST_CASE("the best accuracy stays where images were added to train on alone",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  for (const std::string set : {"train", "val"}) {
    for (const std::string kind : {"cat", "dog"}) write_images(folder / "data" / set / kind, 8);
  }
  const auto of_epochs = [&](const std::string& epochs, const Arguments& more) {
    return run_with(1, folder_run(folder, folder / "data",
                                  Arguments{"--epochs", epochs, "--resume-anyway"} + more));
  };
  REQUIRE(of_epochs("1", {}).status == 0);
  const double best = best_in(folder / "checkpoints/last.safetensors");
  REQUIRE(best > 0);
  write_images(folder / "data/train/cat", 9);
  const auto on = of_epochs("2", {"--no-validation"});
  INFO(on.output);
  REQUIRE(on.status == 0);
  CHECK(contains(on.output, "16 images to train with instead of 17"));
  CHECK(best_in(folder / "checkpoints/last.safetensors") == best);
}

TEST_CASE("the best of another validation does not stand in the way of a better one",
          "[trainer][program][checkpoint]") {
  // All images are taken for the kind that training has most of.
  const ScratchFolder folder;
  const auto data = folder / "data";
  write_images(data / "train/cat", 31);
  write_images(data / "train/dog", 1);
  const auto command = [&](const std::string& epochs, const Arguments& more) {
    return folder_run(folder, data, {"--epochs", epochs}) + more;
  };
  const auto validate_on = [&](int cats) {
    std::filesystem::remove_all(data / "val");
    write_images(data / "val/cat", cats);
    write_images(data / "val/dog", 8 - cats);
  };
  const auto best = folder / "checkpoints/best.safetensors";
  validate_on(7);
  REQUIRE(run_with(1, command("1", {})).status == 0);
  REQUIRE(metadata_of(best)["step"] == "8");

  validate_on(1);
  const auto other = run_with(1, command("2", {}));
  INFO(other.output);
  REQUIRE(other.status == 0);
  CHECK(contains(other.output, "from another validation (validation_list_xxh64 '"));
  CHECK(metadata_of(best)["step"] == "16");
  CHECK(events(folder / "metrics", "validation").back()["best_prec1"] < 50);

  const auto resized = run_with(1, command("3", {"--val-resize-size", "30"}));
  INFO(resized.output);
  REQUIRE(resized.status == 0);
  CHECK(contains(resized.output, "validation_resize '"));
  CHECK(metadata_of(best)["step"] == "24");

  const auto averaged = run_with(1, command("4", {"--val-resize-size", "30", "--ema", "0.9"}));
  INFO(averaged.output);
  REQUIRE(averaged.status == 0);
  CHECK(contains(averaged.output, "validation_weights 'as trained' instead of 'averaged'"));
  const auto same = run_with(1, command("5", {"--val-resize-size", "30", "--ema", "0.9"}));
  INFO(same.output);
  REQUIRE(same.status == 0);
  CHECK_FALSE(contains(same.output, "another validation"));
}

TEST_CASE("what is best is not decided by images that cannot be read",
          "[trainer][program][checkpoint]") {
  // All images are taken for a cat.
  for (const int workers : {1, 2}) {
    const ScratchFolder folder;
    const auto data = folder / "data";
    write_images(data / "train/cat", 31);
    write_images(data / "train/dog", 1);
    for (const std::string kind : {"cat", "dog"}) write_images(data / "val" / kind, 4);
    const auto command = [&](const std::string& epochs) {
      return shared_folder_run(folder, data, {"--epochs", epochs, "--on-bad-image", "skip"});
    };
    const auto best = folder / "checkpoints/best.safetensors";
    REQUIRE(run_with(workers, command("1")).status == 0);
    REQUIRE(metadata_of(best)["step"] == "8");

    for (const std::string name : {"dog/0", "dog/1", "dog/2", "dog/3", "cat/0"}) {
      write_bytes(data / "val" / (name + ".jpg"), "no image");
    }
    const auto fewer = run_with(workers, command("2"));
    INFO(fewer.output);
    REQUIRE(fewer.status == 0);
    const Json last = events(folder / "metrics", "validation").back();
    CHECK(last["images"] == 3);
    CHECK(last["prec1"] == 100);
    CHECK(last["best_prec1"] == 50);
    CHECK(metadata_of(best)["step"] == "8");
  }
}

TEST_CASE("a best model without the checkpoints that it came from is not overwritten",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder / "checkpoints");
  write_bytes(folder / "checkpoints/best.safetensors", "the work of weeks");

  const auto refused = run_with(1, small_run(folder, {"--steps", "1", "--batch-size", "16"}));
  INFO(refused.output);
  CHECK(refused.status == 2);
  CHECK(contains(refused.output, "best.safetensors"));
  CHECK(content_of(folder / "checkpoints/best.safetensors") == "the work of weeks");
}
