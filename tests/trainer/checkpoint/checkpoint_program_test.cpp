// Checkpoints of the program `train`: a run that was stopped ends as one that was not, with any
// number of workers, and after any damage.
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <iomanip>
#include <iterator>
#include <sstream>

#include "tests/testing/catch.h"
#include "tests/testing/process.h"
#include "tests/trainer/checkpoint/checkpoint_runs.h"
#include "tests/trainer/data/jpeg_writer.h"
#include "tests/trainer/data/made_up_sets.h"
#include "tests/trainer/train_program.h"

using namespace ddprun::trainer;
using namespace ddprun::testing;

TEST_CASE("a run that was cut ends with the same weights, with one and two workers",
          "[trainer][program][checkpoint]") {
  for (const int workers : {1, 2}) {
    const ScratchFolder whole, cut;
    const Arguments batch{"--global-batch-size", "16"};
    REQUIRE(run_with(workers, small_run(whole, batch + Arguments{"--epochs", "3"})).status == 0);
    const auto first =
        run_with(workers, small_run(cut, batch + Arguments{"--epochs", "3", "--steps", "10",
                                                           "--checkpoint-every", "4"}));
    INFO(first.output);
    REQUIRE(first.status == 0);
    const auto second = run_with(workers, small_run(cut, batch + Arguments{"--epochs", "3"}));

    INFO(second.output);
    REQUIRE(second.status == 0);
    CHECK(contains(second.output, "resumed from"));
    const std::string last = "checkpoints/epoch_0003_step_0000021.safetensors";
    CHECK(tensors_of(whole / last) == tensors_of(cut / last));
    const auto expected = events(whole / "metrics", "train"),
               found = events(cut / "metrics", "train");
    REQUIRE(expected.size() == 21);
    REQUIRE(found.size() == 21);
    for (std::size_t i = 0; i < 21; ++i) CHECK(found[i]["loss"] == expected[i]["loss"]);
  }
}

TEST_CASE("another number of workers goes on where the others stopped",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  REQUIRE(run_with(2, small_run(folder, {"--global-batch-size", "16", "--epochs", "3", "--steps",
                                         "10", "--no-validation"}))
              .status == 0);

  // 48 samples of the second epoch are done: 24 for each of two, 16 for each of three.
  const auto three =
      run_with(3, small_run(folder, {"--batch-size", "4", "--epochs", "2", "--no-validation"}));
  INFO(three.output);
  REQUIRE(three.status == 0);
  CHECK_FALSE(contains(three.output, "seen again"));
  // (34 - 16) samples of each worker, 4 a step, are 5 steps.
  CHECK(events(folder / "metrics", "end").back()["step"] == 10 + 5);

  const ScratchFolder other;
  REQUIRE(run_with(1, small_run(other, {"--batch-size", "16", "--steps", "1", "--no-validation"}))
              .status == 0);
  const auto uneven =
      run_with(3, small_run(other, {"--batch-size", "4", "--epochs", "1", "--no-validation"}));
  INFO(uneven.output);
  CHECK(uneven.status == 0);
  CHECK(contains(uneven.output, "the last 1 are seen again"));
}

TEST_CASE("after any damage to the newest checkpoint the one before is used",
          "[trainer][program][checkpoint]") {
  const std::string newest = "epoch_0002_step_0000014.safetensors";
  const ScratchFolder folder;
  const Arguments options{"--batch-size", "16", "--epochs", "2", "--no-validation"};
  REQUIRE(run_with(1, small_run(folder, options)).status == 0);
  const auto path = folder / ("checkpoints/" + newest);
  const std::string whole = content_of(path);
  const auto flipped = [&](std::size_t at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    return bytes;
  };
  for (const std::string& bytes :
       {std::string(), whole.substr(0, 7), whole.substr(0, 100), whole.substr(0, whole.size() / 2),
        whole.substr(0, whole.size() - 1), whole + "x", flipped(3), flipped(20),
        flipped(whole.size() / 2), flipped(whole.size() - 1)}) {
    write_bytes(path, bytes);
    const auto result = run_with(1, small_run(folder, options));
    INFO(bytes.size() << " bytes of " << whole.size() << ": " << result.output);
    REQUIRE(result.status == 0);
    CHECK(contains(result.output, path.string()));
    CHECK(contains(result.output, "renamed to " + newest + ".corrupt"));
    CHECK(contains(result.output, "epoch_0001_step_0000007.safetensors: epoch 1, step 7"));
    CHECK(content_of(path.string() + ".corrupt") == bytes);
    CHECK(content_of(path) == whole);  // Trained again, to the same weights.
  }

  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  std::filesystem::remove(path.string() + ".corrupt");
  const auto folder_instead = run_with(1, small_run(folder, options));
  INFO(folder_instead.output);
  CHECK(folder_instead.status == 0);
  CHECK(contains(folder_instead.output, "regular file"));
}

TEST_CASE("a finite but ruined checkpoint gives way to the last good one",
          "[trainer][program][checkpoint]") {
  // Of the newest two, and of the one that a keeper of one would keep.
  for (const std::string kept : {"2", "1"}) {
    const ScratchFolder folder;
    const Arguments options{
        "--batch-size",       "16", "--epochs",           "1", "--no-validation",
        "--checkpoint-every", "1",  "--keep-checkpoints", kept};
    REQUIRE(run_with(1, small_run(folder, options + Arguments{"--steps", "2"})).status == 0);

    const auto ruined = run_with(1, small_run(folder, options + Arguments{"--lr", "3e38"}));
    INFO(ruined.output);
    REQUIRE(ruined.status == 1);
    CHECK(contains(ruined.output, "the loss is nan at step 4"));
    CHECK(contains(ruined.output, "epoch_0000_step_0000003.safetensors.corrupt"));
    CHECK(contains(ruined.output, "goes on from epoch_0000_step_0000002.safetensors"));
    CHECK(std::filesystem::read_symlink(folder / "checkpoints/last.safetensors") ==
          "epoch_0000_step_0000002.safetensors");

    const auto next = run_with(1, small_run(folder, options));
    INFO(next.output);
    CHECK(next.status == 0);
    CHECK_FALSE(contains(next.output, "is missing"));  // The manifest agrees.
    CHECK(contains(next.output, "epoch 1, step 2"));
  }
}

TEST_CASE("when no checkpoint is sound the run ends and says so",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  const Arguments options{"--batch-size", "16", "--epochs", "2", "--no-validation"};
  REQUIRE(run_with(1, small_run(folder, options)).status == 0);
  for (const std::string& name : files_ending_with(folder / "checkpoints", ".safetensors")) {
    write_bytes(folder / ("checkpoints/" + name), "torn");
  }
  const auto result = run_with(1, small_run(folder, options));
  CHECK(result.status == 1);
  CHECK(contains(result.output, "to go on from: those that end in .corrupt"));

  // A restart of the job finds them renamed, and must not begin anew either.
  const auto again = run_with(1, small_run(folder, options));
  INFO(again.output);
  CHECK(again.status == 1);
  CHECK(contains(again.output, "to go on from: those that end in .corrupt"));
  CHECK(files_ending_with(folder / "checkpoints", ".corrupt").size() == 2);

  // Nor one whose first start was to.
  const auto restarted = run_restarted(small_run(folder, options + Arguments{"--resume", "none"}));
  INFO(restarted.output);
  CHECK(restarted.status == 1);
  CHECK(contains(restarted.output, "to go on from: those that end in .corrupt"));
}

TEST_CASE("pixels of another scale cost no checkpoint", "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  const Arguments options{"--batch-size", "16", "--no-validation"};
  REQUIRE(run_with(1, small_run(folder, options + Arguments{"--epochs", "1"})).status == 0);
  const Arguments wrong{"--epochs", "2", "--mean", "0,0,0", "--std", "1e-38,1e-38,1e-38"};
  for (int start = 0; start < 2; ++start) {
    const auto result = run_with(1, small_run(folder, options + wrong));
    INFO(result.output);
    CHECK(result.status == 1);
    CHECK(contains(result.output, "pixels of another scale than it was trained on: it stays"));
  }
  CHECK(files_ending_with(folder / "checkpoints", ".corrupt").empty());
  CHECK(run_with(1, small_run(folder, options + Arguments{"--epochs", "2"})).status == 0);
}

TEST_CASE("a precision that overflows costs no checkpoint", "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  // Weights that are fine in float32, and give pixels of a million times the usual.
  const Arguments options{"--batch-size", "16",    "--no-validation", "--mean",
                          "0,0,0",        "--std", "1e-8,1e-8,1e-8"};
  REQUIRE(run_with(1, small_run(folder, options + Arguments{"--epochs", "1"})).status == 0);
  const Arguments more = options + Arguments{"--epochs", "2"};
  const auto result = run_with(1, small_run(folder, more + Arguments{"--precision", "fp16"}));
  INFO(result.output);
  CHECK(result.status == 1);
  CHECK(contains(result.output, "with --precision fp16, where it was trained with fp32: it stays"));
  CHECK(files_ending_with(folder / "checkpoints", ".corrupt").empty());
  CHECK(run_with(1, small_run(folder, more)).status == 0);
}

TEST_CASE("a file that can never be gone on from is wrong usage, which no restart heals",
          "[trainer][program][checkpoint]") {
  const ScratchFolder before, now;
  REQUIRE(run_with(1, small_run(before, {"--batch-size", "16", "--epochs", "1"})).status == 0);
  const std::string best = before / "checkpoints/best.safetensors";
  const std::string torn = now / "torn.safetensors";
  write_bytes(torn, content_of(best).substr(0, 1000));
  write_bytes(now / "text", "no weights");
  write_bytes(now / "empty", "");
  write_bytes(now / "script.pth", std::string("PK\x03\x04") + std::string(100, 'x'));
  std::filesystem::create_directories(now / "checkpoints");
  for (const Arguments& wrong :
       std::vector<Arguments>{{"--weights", best, "--synthetic-classes", "5"},
                              {"--weights", torn},
                              {"--weights", now / "text"},
                              {"--weights", now / "empty"},
                              {"--resume", best},
                              {"--resume", torn},
                              {"--resume", now / "script.pth"},
                              {"--evaluate"}}) {
    const auto result = run_with(1, small_run(now, wrong));
    INFO(wrong.front() << ' ' << wrong.back() << ": " << result.output);
    CHECK(result.status == 2);
  }
}

TEST_CASE("a file of torch.save is told of as what it is", "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  write_bytes(folder / "script.pth", std::string("PK\x03\x04") + std::string(100, 'x'));
  const auto result = run_with(1, small_run(folder, {"--resume", folder / "script.pth"}));
  INFO(result.output);
  CHECK(contains(result.output, "is a file of torch.save: --weights takes the weights"));
}

TEST_CASE("an evaluation tells of averaged weights that it leaves out, and writes its page",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  const Arguments options{"--batch-size", "16", "--epochs", "1"};
  REQUIRE(run_with(1, small_run(folder, options + Arguments{"--ema", "0.9"})).status == 0);
  const std::string words = "holds averaged weights, too";
  const auto without =
      run_with(1, small_run(folder, {"--evaluate", "--report", folder / "page.html"}));
  INFO(without.output);
  CHECK(without.status == 0);
  CHECK(contains(without.output, words));
  CHECK(contains(content_of(folder / "page.html"), "<svg"));
  const auto with = run_with(1, small_run(folder, {"--evaluate", "--ema", "0.9"}));
  CHECK_FALSE(contains(with.output, words));
  CHECK(contains(with.output, "EMA"));
  const auto weights = run_with(
      1, small_run(folder, {"--evaluate", "--weights", folder / "checkpoints/last.safetensors"}));
  INFO(weights.output);
  CHECK(contains(weights.output, "--weights leaves out: --resume "));
}

TEST_CASE("what an epoch has trained is kept where its validation fails",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  for (const std::string set : {"train", "val"}) {
    for (const std::string kind : {"cat", "dog"}) write_images(folder / "data" / set / kind, 8);
  }
  write_bytes(folder / "data/val/dog/7.jpg", "no image");
  const Arguments command = folder_run(folder, folder / "data", {"--epochs", "1"});
  const auto failed = run_with(1, command);
  INFO(failed.output);
  CHECK(failed.status == 1);
  CHECK(contains(failed.output, "7.jpg"));
  CHECK(std::filesystem::exists(folder / "checkpoints/epoch_0000_step_0000004.safetensors"));

  std::filesystem::remove(folder / "data/val/dog/7.jpg");
  const auto next = run_with(1, command);
  INFO(next.output);
  CHECK(next.status == 0);
  CHECK(events(folder / "metrics", "train").size() == 4);  // Nothing was trained again.
  CHECK(files_ending_with(folder / "checkpoints", "_0000004.safetensors") ==
        std::vector<std::string>{"epoch_0001_step_0000004.safetensors"});
}

TEST_CASE("an image that cannot be read costs no step that was done before it",
          "[trainer][program][checkpoint]") {
  for (const int workers : {1, 2}) {
    const ScratchFolder folder;
    for (const std::string kind : {"cat", "dog"}) write_images(folder / "data/train" / kind, 8);
    const Arguments command = shared_folder_run(folder, folder / "data", {"--epochs", "1"}) +
                              Arguments{"--no-validation"};
    const auto order = run_with(1, command + Arguments{"--print-sample-order", "0"});
    INFO(order.output);
    REQUIRE(order.status == 0);
    // Of the last step: the last sample that rank 0 has in it.
    std::istringstream numbers(order.output);
    const std::vector<int> samples{std::istream_iterator<int>(numbers), {}};
    REQUIRE(samples.size() == 16);
    const int sample = samples[static_cast<std::size_t>(16 - workers)];
    const auto image = folder / "data/train" / (sample < 8 ? "cat" : "dog") /
                       (std::to_string(sample % 8) + ".jpg");
    const std::string sound = content_of(image);
    write_bytes(image, "no image");

    const auto failed = run_with(workers, command);
    INFO(failed.output);
    CHECK(failed.status == 1);
    CHECK(contains(failed.output, image.string()));
    CHECK(std::filesystem::exists(checkpoint_of_step(folder, 3)));

    write_bytes(image, sound);
    const auto next = run_with(workers, command);
    INFO(next.output);
    CHECK(next.status == 0);
    CHECK(events(folder / "metrics", "train").size() == 4);  // Nothing was trained again.
  }
}

TEST_CASE("a file of images that becomes shorter costs no step that was done before",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  write_cifar10(folder.path(), /*train=*/true, 400);
  const auto records = folder / "data_batch_1.bin";
  Process process(run_in(folder, {"--dataset", "cifar10", "--data", folder.path()}) +
                      Arguments{"--batch-size", "2", "--epochs", "100000", "--no-validation"},
                  {{"OMP_NUM_THREADS", "1"}});
  const auto steps = [&] { return contains(content_of(folder / "metrics"), "\"train\""); };
  REQUIRE(process.wait_until(steps, run_limit));

  std::filesystem::resize_file(records, 0);

  const auto failed = process.wait(run_limit);
  INFO(failed.output);
  CHECK(failed.status == 1);
  CHECK(contains(failed.output, records.string() + " became shorter while it was read"));
  const int last = events(folder / "metrics", "train").back()["step"];
  std::ostringstream newest;
  newest << "_step_" << std::setw(7) << std::setfill('0') << last << ".safetensors";
  CHECK(files_ending_with(folder / "checkpoints", newest.str()).size() == 1);
}

TEST_CASE("a write that fails once is made up for with the next step",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  const std::string obstacle = "checkpoints/epoch_0000_step_0000060.safetensors.partial";
  std::filesystem::create_directories(folder / (obstacle + "/in the way"));
  const auto result = run_with(
      1, small_run(folder, {"--batch-size", "1", "--epochs", "1", "--checkpoint-every", "60"}));
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "step_0000060.safetensors.partial: cannot be"));
  CHECK(contains(result.output, "trying again, with step "));
  const auto saved = events(folder / "metrics", "checkpoint");
  REQUIRE(saved.size() >= 2);
  CHECK(saved[0]["step"] < 100);  // Before the next one that is due.
  CHECK(std::filesystem::exists(folder / "checkpoints/epoch_0001_step_0000100.safetensors"));
  CHECK(std::filesystem::exists(folder / "checkpoints/best.safetensors"));
}

TEST_CASE("a run whose folder goes makes it again, and saves there",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  Process process(run_in(folder, {"--dataset", "synthetic", "--synthetic-images", "100000"}) +
                      Arguments{"--batch-size", "4", "--checkpoint-every", "20", "--no-validation"},
                  {{"OMP_NUM_THREADS", "1"}});
  REQUIRE(process.wait_for_output("41/25000]", run_limit));
  // Renamed, so that it goes at once: a removal would meet with what is being written.
  std::filesystem::rename(folder / "checkpoints", folder / "moved");
  REQUIRE(process.wait_for_output("was removed or renamed while this run saved", run_limit));
  process.send_signal(SIGTERM);
  const auto result = process.wait(run_limit);
  INFO(result.output);
  CHECK(result.status == 75);
  CHECK(contains(result.output, "SIGTERM: saved step "));
  CHECK_FALSE(files_ending_with(folder / "checkpoints", ".safetensors").empty());
  CHECK_FALSE(files_ending_with(folder / "moved", ".safetensors").empty());
}

TEST_CASE("SIGTERM saves also where a write has failed before", "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  // What fails twice, of which a slow machine needs some steps, is not tried again for some
  // seconds, in which the signal comes.
  for (int step = 390; step < 450; ++step) {
    std::filesystem::create_directories(folder / "checkpoints" /
                                        ("epoch_0000_step_" +
                                         std::string(7 - std::to_string(step).size(), '0') +
                                         std::to_string(step) + ".safetensors.partial/in the way"));
  }
  Process process(
      run_in(folder, {"--dataset", "synthetic", "--synthetic-images", "100000"}) +
          Arguments{"--batch-size", "4", "--checkpoint-every", "390", "--no-validation"},
      {{"OMP_NUM_THREADS", "1"}});
  REQUIRE(process.wait_for_output("451/25000]", run_limit));
  process.send_signal(SIGTERM);
  const auto result = process.wait(run_limit);
  INFO(result.output);
  CHECK(result.status == 75);
  CHECK(contains(result.output, "SIGTERM: saved step "));
  CHECK(files_ending_with(folder / "checkpoints", ".safetensors").size() == 2);  // With the link.
}

TEST_CASE("a checkpoint that was asked to fit and does not stays as it is",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  const Arguments options{"--batch-size", "16", "--steps", "2", "--no-validation"};
  REQUIRE(run_with(1, small_run(folder, options)).status == 0);
  const auto other =
      run_with(1, small_run(folder, options + Arguments{"--image-size", "28", "--resume-anyway"}));
  INFO(other.output);
  CHECK(other.status == 2);
  CHECK(contains(other.output, "'fc1.weight' has not the shape"));
  CHECK(files_ending_with(folder / "checkpoints", ".corrupt").empty());
  CHECK(run_with(1, small_run(folder, options)).status == 0);
}

TEST_CASE("a checkpoint that cannot be opened ends the run and stays",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  const Arguments options{"--batch-size", "16", "--epochs", "2", "--no-validation"};
  REQUIRE(run_with(1, small_run(folder, options)).status == 0);
  const auto newest = folder / "checkpoints/epoch_0002_step_0000014.safetensors";
  std::filesystem::remove(newest);
  std::filesystem::create_symlink(newest.filename(), newest);  // A loop fails for root too.

  const auto result = run_with(1, small_run(folder, options));
  INFO(result.output);
  CHECK(result.status == 1);
  CHECK(contains(result.output, newest.string() + ": cannot be opened"));
  CHECK(files_ending_with(folder / "checkpoints", ".corrupt").empty());
}

TEST_CASE("a validation beside a training run leaves its folder alone",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  const Arguments options{"--batch-size", "16"};
  REQUIRE(run_with(1, small_run(folder, options + Arguments{"--epochs", "1"})).status == 0);
  const auto partial = folder / "checkpoints/epoch_0002_step_0000014.safetensors.partial";
  write_bytes(partial, "being written");

  const auto result = run_with(1, small_run(folder, options + Arguments{"--evaluate"}));
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(content_of(partial) == "being written");
}

TEST_CASE("a checkpoint that cannot be written ends the run with the reason",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  std::string command = "ulimit -f 20; exec";  // Blocks of 512 or 1024 bytes.
  for (const std::string& argument :
       small_run(folder, {"--batch-size", "16", "--epochs", "2", "--no-validation"})) {
    command += " '" + argument + "'";
  }
  const auto result = run({"sh", "-c", command}, run_limit, {{"OMP_NUM_THREADS", "1"}});
  INFO(result.output);
  CHECK(result.status == 1);
  CHECK(contains(result.output, (folder / "checkpoints").string()));
  CHECK(contains(result.output, "File too large"));
  CHECK(files_ending_with(folder / "checkpoints", "").empty());
}

TEST_CASE("a full disk ends the run with the reason", "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder / "checkpoints");
  std::string command = "mount -t tmpfs -o size=64k none '" + (folder / "checkpoints").string();
  command += "' || exit 77; exec";
  for (const std::string& argument :
       small_run(folder, {"--batch-size", "16", "--epochs", "2", "--no-validation"})) {
    command += " '" + argument + "'";
  }
  const auto result = run({"unshare", "--map-root-user", "--mount", "sh", "-c", command}, run_limit,
                          {{"OMP_NUM_THREADS", "1"}});
  if (result.status == 77 || contains(result.output, "unshare failed")) {
    DDPRUN_SKIP("a file system of its own cannot be mounted here: " + result.output);
  }
  INFO(result.output);
  CHECK(result.status == 1);
  CHECK(contains(result.output, (folder / "checkpoints").string()));
  CHECK(contains(result.output, "No space left on device"));
}

TEST_CASE("SIGTERM waits for the checkpoints at hand and saves the last step",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  // Saves without a pause, so that one is in flight whenever the signal comes.
  Process process(Arguments{DDPRUN_TRAIN, "--metrics", folder / "metrics", "--checkpoint-dir",
                            folder / "checkpoints"} +
                      words_of("--dataset synthetic --synthetic-images 6400 --model resnet18 "
                               "--batch-size 1 --image-size 32 --print-freq 1 --device cpu "
                               "--no-validation --checkpoint-every 1"),
                  {{"OMP_NUM_THREADS", "1"}});
  REQUIRE(process.wait_for_output("   3/6400]", run_limit));
  process.send_signal(SIGTERM);
  const auto result = process.wait(run_limit);

  REQUIRE(result.ended);
  CHECK(result.status == 75);
  CHECK(files_ending_with(folder / "checkpoints", ".partial").empty());
  CHECK_FALSE(files_ending_with(folder / "checkpoints", ".safetensors").empty());
}

TEST_CASE("a restart goes on from the file that was given until the folder is further",
          "[trainer][program][checkpoint]") {
  const ScratchFolder given, own;
  const Arguments options{"--batch-size",       "16", "--checkpoint-every", "1",
                          "--keep-checkpoints", "9",  "--no-validation"};
  REQUIRE(run_with(1, small_run(given, options + Arguments{"--steps", "4"})).status == 0);
  REQUIRE(run_with(1, small_run(own, options + Arguments{"--steps", "2"})).status == 0);
  const auto restarted_with = [&](int step) {
    return run_restarted(small_run(
        own, options + Arguments{"--steps", "5", "--resume", checkpoint_of_step(given, step)}));
  };

  const auto behind = restarted_with(4);
  INFO(behind.output);
  CHECK(behind.status == 0);
  CHECK(contains(behind.output, "resumed from " + checkpoint_of_step(given, 4)));
  CHECK(contains(behind.output, "attempt 1 finds no later checkpoint in"));

  const auto further = restarted_with(3);
  INFO(further.output);
  CHECK(further.status == 0);
  CHECK(contains(further.output, "resumed from " + checkpoint_of_step(own, 5)));
  CHECK_FALSE(contains(further.output, "finds no later checkpoint"));

  // As one that the job itself has replaced.
  std::filesystem::remove(checkpoint_of_step(given, 3));
  const auto gone = restarted_with(3);
  INFO(gone.output);
  CHECK(gone.status == 0);
  CHECK(contains(gone.output, "resumed from " + checkpoint_of_step(own, 5)));
}

TEST_CASE("a restart from a file of its own folder goes on from the newest there",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  const Arguments options{"--batch-size", "16", "--no-validation"};
  REQUIRE(run_with(1, small_run(folder, options + Arguments{"--steps", "2"})).status == 0);
  const auto restarted = run_restarted(small_run(
      folder,
      options + Arguments{"--steps", "4", "--resume", folder / "checkpoints/last.safetensors"}));
  INFO(restarted.output);
  CHECK(restarted.status == 0);
  CHECK(contains(restarted.output, "resumed from " + checkpoint_of_step(folder, 2)));
  CHECK_FALSE(contains(restarted.output, "finds no later checkpoint"));
}

TEST_CASE("checkpoints of another training do not give way to a file that is named",
          "[trainer][program][checkpoint]") {
  const ScratchFolder first, second;
  const auto small = [](const ScratchFolder& in, const Arguments& more) {
    const auto result = run_with(1, small_run(in, Arguments{"--batch-size", "16"} + more));
    UNSCOPED_INFO(result.output);
    return result;
  };
  REQUIRE(small(first, {"--steps", "4"}).status == 0);
  REQUIRE(small(second, {"--steps", "2"}).status == 0);
  const std::string last = second / "checkpoints/last.safetensors", kept = content_of(last);

  const auto refused =
      small(second, {"--steps", "6", "--resume", first / "checkpoints/last.safetensors"});
  CHECK(refused.status == 2);
  CHECK(contains(refused.output, "is none of the checkpoints in"));
  CHECK(content_of(last) == kept);

  // A copy of one of its own is one of them.
  write_bytes(second / "copy.safetensors", kept);
  CHECK(small(second, {"--steps", "3", "--resume", second / "copy.safetensors"}).status == 0);
}

TEST_CASE("an evaluation finds checkpoints whatever --resume says, and tells which it can take",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  REQUIRE(run_with(1, small_run(folder, {"--batch-size", "16", "--epochs", "1"})).status == 0);
  const auto found = run_with(1, small_run(folder, {"--evaluate", "--resume", "none"}));
  INFO(found.output);
  CHECK(found.status == 0);
  CHECK(contains(found.output, "resumed from"));

  write_bytes(folder / "checkpoints/epoch_0001_step_0000007.safetensors", "torn");
  const auto torn = run_with(1, small_run(folder, {"--evaluate"}));
  INFO(torn.output);
  CHECK(torn.status == 1);
  CHECK(
      contains(torn.output, "can be evaluated: give a sound one with --resume FILE, or the best"));
  CHECK(contains(torn.output, "checkpoints/best.safetensors"));
  CHECK_FALSE(contains(torn.output, ".corrupt"));
}

TEST_CASE("what is evaluated is what was named, in every attempt",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  const Arguments batch{"--batch-size", "16"};
  REQUIRE(run_with(1, small_run(folder, batch + Arguments{"--steps", "4", "--checkpoint-every", "1",
                                                          "--keep-checkpoints", "9"}))
              .status == 0);
  const std::string older = checkpoint_of_step(folder, 2);

  const auto file =
      run_restarted(small_run(folder, batch + Arguments{"--evaluate", "--resume", older}));
  INFO(file.output);
  CHECK(file.status == 0);
  CHECK(contains(file.output, "resumed from " + older));
  CHECK(events(folder / "metrics", "validation").back()["step"] == 2);

  const auto weights =
      run_with(1, small_run(folder, batch + Arguments{"--evaluate", "--weights", older}));
  INFO(weights.output);
  CHECK(weights.status == 0);
  CHECK(contains(weights.output, "weights from " + older));
  CHECK_FALSE(contains(weights.output, "resumed from"));

  const auto missing = run_with(
      1, small_run(folder, batch + Arguments{"--evaluate", "--weights", folder / "no such file"}));
  INFO(missing.output);
  CHECK(missing.status == 2);
  CHECK(contains(missing.output, "--weights: cannot read"));
}

TEST_CASE("weights that a run with a checkpoint does not begin with are told of",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  const Arguments options{"--batch-size", "16", "--no-validation"};
  REQUIRE(run_with(1, small_run(folder, options + Arguments{"--steps", "1"})).status == 0);
  const auto next = run_with(
      1, small_run(folder, options + Arguments{"--steps", "2", "--weights", folder / "elsewhere"}));
  INFO(next.output);
  CHECK(next.status == 0);
  CHECK(contains(next.output, "elsewhere is not used: training goes on from the checkpoint in"));
}

TEST_CASE("an evaluation of other weights tells of the checkpoints that it passes over",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder, other;
  const auto small = [&](const ScratchFolder& in, const Arguments& more) {
    return run_with(1, small_run(in, Arguments{"--batch-size", "16"} + more));
  };
  REQUIRE(small(other, {"--steps", "1"}).status == 0);
  REQUIRE(small(folder, {"--steps", "2"}).status == 0);
  const auto passes_over = [&](const std::filesystem::path& weights) {
    const auto result = small(folder, {"--evaluate", "--weights", weights});
    INFO(result.output);
    CHECK(result.status == 0);
    return contains(result.output, "looks at no checkpoint in ");
  };

  CHECK(passes_over(other / "checkpoints/best.safetensors"));
  CHECK_FALSE(passes_over(folder / "checkpoints/best.safetensors"));
  // What tells of other classes offers nothing that would not be evaluated either.
  const auto classes = small(folder, {"--synthetic-classes", "3", "--evaluate", "--weights",
                                      folder / "checkpoints/best.safetensors"});
  INFO(classes.output);
  CHECK(classes.status != 0);
  CHECK(contains(classes.output, "is for 10 classes, and the data has 3"));
  CHECK_FALSE(contains(classes.output, "--new-head"));
}

TEST_CASE("whoever goes on with pixels of another scale is told",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  const auto small = [&](const Arguments& more) {
    const Arguments two{"--batch-size", "16", "--synthetic-classes", "2"};
    const auto result = run_with(1, small_run(folder, two + more));
    INFO(result.output);
    CHECK(result.status == 0);
    return result.output;
  };
  const Arguments scaled{"--mean", "0.5,0.25,0.125", "--std", "0.25,0.25,0.25"};
  const std::string told = "pixels of another scale: mean '0.5,0.25,0.125' instead of '";
  const auto best = folder / "checkpoints/best.safetensors";
  CHECK_FALSE(contains(small(Arguments{"--epochs", "1"} + scaled), told));
  CHECK(metadata_of(best)["std"] == "0.25,0.25,0.25");
  REQUIRE(metadata_of(best)["best_prec1"] != "0");

  CHECK(contains(small({"--evaluate"}), told));
  CHECK(contains(small({"--evaluate", "--weights", best}), told));
  CHECK_FALSE(contains(small(Arguments{"--evaluate"} + scaled), told));
  const std::string resumed = small({"--epochs", "2"});
  CHECK(contains(resumed, told));
  CHECK(contains(resumed, "from another validation (mean '"));
  CHECK(metadata_of(best)["step"] == "14");
}

TEST_CASE("a rest of an epoch with a lone last image takes one more",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  const Arguments command =
      Arguments{DDPRUN_TRAIN, "--checkpoint-dir", folder / "checkpoints"} +
      words_of(
          "--dataset synthetic --synthetic-images 16 --model resnet18 --stem imagenet "
          "--image-size 28 --batch-size 4 --epochs 1 --no-validation --device cpu");
  REQUIRE(run_with(1, command + Arguments{"--steps", "1"}).status == 0);

  // Each of three has one of its six images behind it, and five are a batch of four and one.
  const auto three = run_with(3, command);
  INFO(three.output);
  CHECK(three.status == 0);
  CHECK(contains(three.output,
                 "cannot share without a last batch of one image each: the last 4 are seen again"));
}

TEST_CASE("an evaluation does not ask how a checkpoint was trained",
          "[trainer][program][checkpoint]") {
  const ScratchFolder folder;
  REQUIRE(run_with(1, small_run(folder, {"--batch-size", "8", "--steps", "2", "--optimizer", "lars",
                                         "--seed", "5", "--shards", "2"}))
              .status == 0);
  for (const int workers : {1, 2}) {
    const auto result =
        run_with(workers, small_run(folder, {"--batch-size", "8", "--evaluate", "--shards", "4"}));
    INFO(result.output);
    CHECK(result.status == 0);
    CHECK_FALSE(contains(result.output, "warning"));
  }
}
