// Checkpoints: complete, checked before anything is changed, and whole on the disk.
#include "trainer/checkpoint/checkpoint.h"

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/models/model_zoo.h"
#include "trainer/optimizer/sgd.h"

using namespace ddprun::trainer;

namespace {

const RunIdentity identity{"convnet", "mnist", "1x28x28", 10, 3};

struct Run {
  explicit Run(std::int64_t classes = 10)
      : model(make_model({"convnet", StemChoice::Auto, 1, 28, classes})),
        optimizer(parameters(), {}) {}

  std::vector<std::pair<std::string, torch::Tensor>> parameters() const {
    std::vector<std::pair<std::string, torch::Tensor>> result;
    for (const auto& entry : model->named_parameters())
      result.emplace_back(entry.key(), entry.value());
    return result;
  }
  void step() {
    for (const torch::Tensor& parameter : model->parameters()) {
      parameter.mutable_grad() = torch::ones_like(parameter);
    }
    optimizer.step(0.1);
  }
  CheckpointParts parts() { return {optimizer_part(optimizer)}; }
  torch::Tensor weight() const { return model->named_parameters()["fc1.weight"].detach().clone(); }

  std::shared_ptr<ImageClassifier> model;
  Sgd optimizer;
};

std::string restore_error(const Safetensors& file, const RunIdentity& wanted = identity) {
  Run run;
  const torch::Tensor before = run.weight();
  const std::string message = message_of<CheckpointError>(
      [&] { restore_checkpoint(file, "file", wanted, *run.model, run.parts()); });
  CHECK((message.empty() || torch::equal(run.weight(), before)));
  return message;
}

Safetensors on_disk(const Safetensors& file) {
  const ScratchFolder folder;
  write_safetensors(folder / "f", file);
  return read_safetensors(folder / "f");
}

}  // namespace

TEST_CASE("a restored run goes on exactly as the saved one", "[trainer][checkpoint]") {
  Run saved;
  saved.step();
  const TrainingState state{
      .epoch = 2, .samples_done = 640, .step = 12, .best_prec1 = 97.123456789};
  const Safetensors file = on_disk(make_checkpoint(identity, state, *saved.model, saved.parts()));

  Run restored;
  const TrainingState back =
      restore_checkpoint(file, "file", identity, *restored.model, restored.parts()).state;

  CHECK(back.epoch == 2);
  CHECK(back.samples_done == 640);
  CHECK(back.step == 12);
  CHECK(back.best_prec1 == 97.123456789);
  saved.step();
  restored.step();
  CHECK(torch::equal(saved.weight(), restored.weight()));
}

TEST_CASE("a checkpoint of another run is refused with all that differs", "[trainer][checkpoint]") {
  Run run;
  const Safetensors file = on_disk(make_checkpoint(identity, {}, *run.model, run.parts()));
  RunIdentity other = identity;
  other.dataset = "cifar10";
  other.seed = 4;

  const std::string message = restore_error(file, other);

  CHECK(contains(message, "dataset 'mnist' instead of 'cifar10'"));
  CHECK(contains(message, "seed '3' instead of '4'"));
  CHECK_FALSE(contains(message, "classes"));
}

TEST_CASE("a checkpoint of other data is refused, unless that is meant", "[trainer][checkpoint]") {
  Run saved;
  saved.step();
  RunIdentity then = identity;
  then.data = {.images = 640, .class_names = {"cat", "cow"}, .list_checksum = "1"};
  RunIdentity now = identity;
  now.data = {.images = 60'000, .class_names = {"cat", "dog"}, .list_checksum = "2"};
  const Safetensors file = on_disk(make_checkpoint(then, {.step = 1}, *saved.model, saved.parts()));

  const std::string message = restore_error(file, now);
  CHECK(contains(message, "640 images to train with instead of 60000"));
  CHECK(contains(message, "class 1 'cow' instead of 'dog'"));
  CHECK(contains(message, "--resume-anyway"));
  CHECK(restore_error(file, then) == "");

  Run restored;
  const auto anyway = restore_checkpoint(file, "file", now, *restored.model, restored.parts(),
                                         IdentityCheck::Anyway);
  REQUIRE(anyway.warnings.size() == 1);
  CHECK(contains(anyway.warnings[0], "640 images to train with instead of 60000"));
  CHECK(torch::equal(saved.weight(), restored.weight()));
  now.model = "resnet18";
  CHECK(contains(message_of<ForeignCheckpointError>([&] {
                   restore_checkpoint(file, "file", now, *restored.model, restored.parts(),
                                      IdentityCheck::Anyway);
                 }),
                 "model 'convnet' instead of 'resnet18'"));
}

TEST_CASE("a best accuracy of another validation does not count", "[trainer][checkpoint]") {
  Run run;
  RunIdentity then = identity;
  then.validation = {.list_checksum = "1", .resize = 32, .averaged = false};
  const TrainingState state{.step = 1, .best_prec1 = 75};
  const Safetensors file = on_disk(make_checkpoint(then, state, *run.model, run.parts()));
  const auto restore = [&](const RunIdentity& now, const Safetensors& from) {
    return restore_checkpoint(from, "file", now, *run.model, run.parts());
  };

  RunIdentity list = then, resized = then, averaged = then;
  list.validation->list_checksum = "2";
  resized.validation->resize = 40;
  averaged.validation->averaged = true;
  for (const auto& [now, difference] :
       {std::pair(list, "validation_list_xxh64 '1' instead of '2'"),
        std::pair(resized, "validation_resize '32' instead of '40'"),
        std::pair(averaged, "validation_weights 'as trained' instead of 'averaged'")}) {
    const auto restored = restore(now, file);
    CHECK(restored.state.best_prec1 == 0);
    REQUIRE(restored.warnings.size() == 1);
    CHECK(contains(restored.warnings[0], difference));
    CHECK(accuracy_in(file, "file", now) == 0);
  }

  // The same one, one that is not told of, and none.
  Safetensors older = file;
  for (const char* key : {"validation_list_xxh64", "validation_resize", "validation_weights"}) {
    REQUIRE(older.metadata.erase(key) == 1);
  }
  for (const auto& [now, from] :
       {std::pair(then, file), std::pair(list, older), std::pair(identity, file)}) {
    const auto restored = restore(now, from);
    CHECK(restored.state.best_prec1 == 75);
    CHECK(restored.warnings.empty());
    CHECK(accuracy_in(from, "file", now) == 75);
  }
}

TEST_CASE("a checkpoint knows the pixels that it was trained on", "[trainer][checkpoint]") {
  Run run;
  RunIdentity then = identity;
  then.validation = {.list_checksum = "1", .resize = 28, .averaged = false};
  then.normalization = {{0.1307F}, {0.3081F}};
  const TrainingState state{.step = 1, .best_prec1 = 75};
  const Safetensors file = on_disk(make_checkpoint(then, state, *run.model, run.parts()));
  const auto restore = [&](const RunIdentity& now, const Safetensors& from) {
    return restore_checkpoint(from, "file", now, *run.model, run.parts());
  };
  RunIdentity now = then;
  now.normalization = {{0.5F}, {0.25F}};
  const std::string difference = "mean '0.1307' instead of '0.5', std '0.3081' instead of '0.25'";

  const auto other = restore(now, file);
  REQUIRE(other.warnings.size() == 2);
  CHECK(contains(other.warnings[0], "pixels of another scale: " + difference));
  CHECK(contains(other.warnings[1], "from another validation (" + difference));
  CHECK(other.state.best_prec1 == 0);
  CHECK(accuracy_in(file, "file", now) == 0);
  now.validation.reset();  // As with --evaluate.
  CHECK(restore(now, file).warnings.size() == 1);

  CHECK(restore(then, file).warnings.empty());
  CHECK(restore(then, file).state.best_prec1 == 75);
  Safetensors older = file;
  for (const char* key : {"mean", "std"}) REQUIRE(older.metadata.erase(key) == 1);
  now.validation = then.validation;
  CHECK(restore(now, older).warnings.empty());
  CHECK(restore(now, older).state.best_prec1 == 75);
}

TEST_CASE("a checkpoint that does not know its data is taken with a note",
          "[trainer][checkpoint]") {
  Run run;
  RunIdentity now = identity;
  now.data = {.images = 640, .class_names = {}, .list_checksum = "1"};
  const Safetensors old = on_disk(make_checkpoint(identity, {}, *run.model, run.parts()));
  const auto restored = restore_checkpoint(old, "file", now, *run.model, run.parts());
  REQUIRE(restored.warnings.size() == 1);
  CHECK(contains(restored.warnings[0], "file does not tell which images"));
}

TEST_CASE("a checkpoint with wrong metadata or tensors is refused", "[trainer][checkpoint]") {
  Run run;
  run.step();
  const Safetensors good = on_disk(make_checkpoint(identity, {}, *run.model, run.parts()));
  REQUIRE(restore_error(good) == "");

  Safetensors file = good;
  file.metadata.erase("step");
  CHECK(contains(restore_error(file), "'step'"));
  file = good;
  file.metadata["epoch"] = "-1";
  CHECK(contains(restore_error(file), "'epoch'"));
  file = good;
  file.metadata["best_prec1"] = "nan";
  CHECK(contains(restore_error(file), "'best_prec1'"));
  file = good;
  file.metadata.erase(checksum_key);
  CHECK(contains(restore_error(file), "xxh64"));
  file = good;
  file.tensors.erase(file.tensors.begin());
  CHECK(contains(restore_error(file), "missing conv1.weight"));
  file = good;
  file.tensors.emplace_back("optimizer/momentum/none", torch::ones({1}));
  CHECK(contains(restore_error(file), "'none'"));
  CHECK(contains(restore_error(on_disk(make_weights(identity, {}, *run.model))), "--weights"));
}

TEST_CASE("a position that no run comes to is refused", "[trainer][checkpoint]") {
  Run run;
  constexpr std::int64_t epochs_max = 2'147'483'647, exact_max = 9'007'199'254'740'992;
  const TrainingState last{.epoch = epochs_max, .samples_done = exact_max, .step = exact_max};
  const Safetensors good = on_disk(make_checkpoint(identity, last, *run.model, run.parts()));
  REQUIRE(restore_error(good) == "");
  CHECK(step_of(good, "file") == exact_max);
  for (const auto& [key, most] :
       {std::pair("epoch", epochs_max), {"samples_done", exact_max}, {"step", exact_max}}) {
    Safetensors file = good;
    for (const std::string& beyond : {std::to_string(most + 1), std::string("9223372036854775807"),
                                      std::string("9223372036854775808")}) {
      file.metadata[key] = beyond;
      const std::string message = restore_error(file);
      INFO(message);
      CHECK(contains(message, "'" + std::string(key) + "' in its metadata is '" + beyond + "'"));
      CHECK(contains(message, "a whole number from 0 to " + std::to_string(most)));
    }
  }
}

TEST_CASE("weights that do not fit are refused before any is loaded", "[trainer][checkpoint]") {
  Run ten, twelve(12);
  const torch::Tensor before = ten.weight();

  const std::string message = message_of<CheckpointError>(
      [&] { load_weights(make_weights(identity, {}, *twelve.model).tensors, "file", *ten.model); });

  CHECK(contains(message, "fc2.weight [12, 50] instead of [10, 50]"));
  CHECK(torch::equal(ten.weight(), before));
  NamedTensors prefixed = make_weights(identity, {}, *ten.model).tensors;
  for (auto& entry : prefixed) entry.first = "module." + entry.first;
  CHECK_NOTHROW(load_weights(prefixed, "file", *ten.model));
}

TEST_CASE("names are the model's, whatever wrapped it in Python", "[trainer][checkpoint]") {
  CHECK(unwrapped_name("conv1.weight") == "conv1.weight");
  CHECK(unwrapped_name("module.conv1.weight") == "conv1.weight");
  CHECK(unwrapped_name("_orig_mod.conv1.weight") == "conv1.weight");
  CHECK(unwrapped_name("module._orig_mod.conv1.weight") == "conv1.weight");
  CHECK(unwrapped_name("_orig_mod.module.conv1.weight") == "conv1.weight");
  CHECK(unwrapped_name("layer1._orig_mod.0.conv1.weight") == "layer1.0.conv1.weight");
  CHECK(unwrapped_name("my_orig_mod.weight") == "my_orig_mod.weight");
  CHECK(unwrapped_name("submodule.weight") == "submodule.weight");
}

TEST_CASE("names of checkpoints are read back and other names are not", "[trainer][checkpoint]") {
  const CheckpointName name{3, 123};
  CHECK(name.file_name() == "epoch_0003_step_0000123.safetensors");
  CHECK(parse_checkpoint_name(name.file_name())->step == 123);
  CHECK(parse_checkpoint_name("epoch_12345_step_123456789.safetensors")->epoch == 12345);
  for (const char* other :
       {"best.safetensors", "epoch_0003_step_0000123.safetensors.partial",
        "epoch__step_1.safetensors", "epoch_1_step_x.safetensors", "epoch_-1_step_1.safetensors",
        "epoch_1x_step_1.safetensors", "epoch_1.safetensors", "",
        "epoch_1_step_99999999999999999999.safetensors"}) {
    CHECK_FALSE(parse_checkpoint_name(other));
  }
}

TEST_CASE("the newest two checkpoints stay, and everything else in the folder",
          "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  write_bytes(scratch / "notes.txt", "mine");
  CheckpointFolder folder(scratch.path());
  const Safetensors contents{{{"a", torch::ones({2})}}, {}};

  folder.save_best(contents);
  for (std::int64_t step = 1; step <= 4; ++step) folder.save({0, step}, contents);

  const auto names = folder.list();
  REQUIRE(names.size() == 2);
  CHECK(names[0].step == 3);
  CHECK(names[1].step == 4);
  CHECK(std::filesystem::exists(scratch / "best.safetensors"));
  CHECK(content_of(scratch / "notes.txt") == "mine");
}

TEST_CASE("remains of an interrupted write are removed and never read", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  write_bytes(scratch / "epoch_0001_step_0000009.safetensors.partial", "torn");

  const CheckpointFolder folder(scratch.path());

  CHECK(folder.list().empty());
  CHECK(std::filesystem::is_empty(scratch.path()));
}

TEST_CASE("a checkpoint folder that cannot be used is refused at once", "[trainer][checkpoint]") {
  const ScratchFolder scratch;
  write_bytes(scratch / "file", "");
  const auto error = [](const std::filesystem::path& path) {
    return message_of<CheckpointError>([&] { const CheckpointFolder folder(path); });
  };
  CHECK(contains(error(scratch / "file"), "--checkpoint-dir"));
  CHECK(contains(error(scratch / "file/below"), "--checkpoint-dir"));
  CHECK(contains(error("/proc/no-such-folder"), "/proc/no-such-folder"));
}

TEST_CASE("a part of training is saved and restored by its name", "[trainer][checkpoint]") {
  Run run;
  torch::Tensor average = torch::arange(6).reshape({2, 3}).t();
  PartState seen;
  int restores = 0;
  CheckpointParts parts = run.parts();
  parts.push_back({.name = "ema",
                   .save =
                       [&] {
                         return PartState{{{"a.weight", average}}, {{"decay", "0.5"}}};
                       },
                   .check = {},
                   .restore =
                       [&](const PartState& state) {
                         seen = state;
                         ++restores;
                       }});
  const Safetensors file = on_disk(make_checkpoint(identity, {}, *run.model, parts));

  restore_checkpoint(file, "file", identity, *run.model, parts);

  REQUIRE(seen.tensors.size() == 1);
  CHECK(seen.tensors[0].first == "a.weight");
  CHECK(torch::equal(seen.tensors[0].second, average));
  CHECK(seen.values.at("decay") == "0.5");
  // A run without the part says so, and a checkpoint without it gives the part an empty state.
  const auto without = restore_checkpoint(file, "file", identity, *run.model, run.parts());
  CHECK(without.unknown_parts == std::vector<std::string>{"ema"});
  restore_checkpoint(on_disk(make_checkpoint(identity, {}, *run.model, run.parts())), "file",
                     identity, *run.model, parts);
  CHECK(restores == 2);
  CHECK(seen.tensors.empty());
  CHECK(seen.values.empty());
}
