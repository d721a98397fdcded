// Weights to and from Python: torchvision's models, safetensors and .pth, and what is no such file.
#include "trainer/checkpoint/weights_file.h"

#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/formats/torch_file.h"
#include "trainer/models/model_zoo.h"

using namespace ddprun::trainer;

namespace {

torch::Tensor tensor_named(const Safetensors& file, const std::string& name) {
  for (const auto& [key, tensor] : file.tensors) {
    if (key == name) return tensor;
  }
  FAIL("no " << name);
  return {};
}

torch::Tensor logits_of(ImageClassifier& model, const torch::Tensor& images) {
  torch::NoGradGuard no_grad;
  model.eval();
  return model.forward(images);
}

// As a part of the largest logit, or of 1.
double largest_difference(const torch::Tensor& a, const torch::Tensor& b) {
  const double scale = std::max(1.0, b.abs().max().item<double>());
  return (a - b).abs().max().item<double>() / scale;
}

// As after training: those of a fresh model multiply logits to 1e5.
void adapt_statistics(ImageClassifier& model) {
  torch::NoGradGuard no_grad;
  for (auto& entry : model.named_buffers()) {
    if (entry.key().ends_with("running_mean")) entry.value().normal_(0, 0.1);
    if (entry.key().ends_with("running_var")) entry.value().uniform_(1, 2);
  }
}

// What is not loaded afterwards is missing from the logits.
void forget(ImageClassifier& model) {
  torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : model.parameters()) parameter.zero_();
  for (torch::Tensor& buffer : model.buffers()) buffer.zero_();
}

std::shared_ptr<ImageClassifier> model_of(const std::string& name, std::int64_t classes) {
  return make_model({name, StemChoice::ImageNet, 3, 64, classes});
}

std::string load_error(const std::filesystem::path& path, torch::nn::Module& model,
                       WeightsUse use = WeightsUse::Training) {
  return message_of<CheckpointError>([&] { load_weights_file(path, use, model); });
}

// In torchvision's model, and our name for each of its entries.
struct Exchanged {
  const char* name;
  std::size_t entries;
};
constexpr Exchanged exchanged[] = {{"resnet18", 122}, {"resnet34", 218}, {"resnet50", 320}};

std::string command(const std::string& name, const ScratchFolder& folder,
                    const std::string& more = "") {
  return name + " " + in_quotes(folder.path().string()) + more;
}

}  // namespace

// All models, and both ways, in one Python, whose start costs as much as two of them.
TEST_CASE("weights go both ways to torchvision's ResNets", "[trainer][checkpoint][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Python torch in .deps/peer");
  const ScratchFolder folder;
  torch::manual_seed(5);
  const torch::Tensor images = torch::randn({2, 3, 64, 64});
  write_safetensors(folder / "images", {{{"images", images}}, {}});
  std::string names;
  std::map<std::string, torch::Tensor> our_logits;
  for (const auto& [name, entries] : exchanged) {
    INFO(name);
    names.append(" ").append(name);
    const auto model = model_of(name, 10);
    adapt_statistics(*model);
    const Safetensors ours = make_weights({name, "none", "3x64x64", 10, 5}, {}, *model);
    CHECK(ours.tensors.size() == entries);
    write_safetensors(folder / (std::string(name) + ".ours"), ours);
    our_logits[name] = logits_of(*model, images);
  }

  const int code = run_oracle(command("exchange", folder, names), folder / "log");

  INFO(content_of(folder / "log"));
  REQUIRE(code == 0);
  const auto told = [&](const std::string& file) {
    return tensor_named(read_safetensors(folder / file), "logits");
  };
  for (const auto& [name, logits] : our_logits) {
    INFO(name);
    // Loaded by the code that docs/training.md shows.
    CHECK(largest_difference(logits, told(name + ".taken")) < 1e-5);
    const torch::Tensor expected = told(name + ".given");
    const auto theirs = model_of(name, 1000);
    for (const char* kind : {".safetensors", ".pth"}) {
      INFO(kind);
      forget(*theirs);
      load_weights_file(folder / (name + kind), WeightsUse::Training, *theirs);
      CHECK(largest_difference(logits_of(*theirs, images), expected) < 1e-5);
    }
  }
}

// The two that are too large to be computed with here.
TEST_CASE("the deepest ResNets have torchvision's names and shapes",
          "[trainer][checkpoint][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Python torch in .deps/peer");
  const ScratchFolder folder;
  REQUIRE(run_oracle("shapes resnet101 resnet152", folder / "shapes") == 0);
  std::set<std::string> ours, theirs;
  std::istringstream lines(content_of(folder / "shapes"));
  for (std::string line; std::getline(lines, line);) theirs.insert(line);
  for (const std::string name : {"resnet101", "resnet152"}) {
    const auto model = model_of(name, 10);
    const Safetensors file = make_weights({name, "none", "3x64x64", 10, 5}, {}, *model);
    for (const auto& [entry, tensor] : file.tensors) {
      std::ostringstream line;
      line << name << " " << entry << " " << tensor.sizes();
      ours.insert(line.str());
    }
  }
  CHECK(theirs.size() == 626 + 932);
  CHECK(ours == theirs);
}

TEST_CASE("files of torch.save are read in the forms that scripts write",
          "[trainer][checkpoint][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Python torch in .deps/peer");
  const ScratchFolder folder;
  REQUIRE(run_oracle(command("torch_files", folder), folder / "log") == 0);
  const NamedTensors expected = read_safetensors(folder / "expected").tensors;

  for (const char* name :
       {"plain.pth", "wrapped.pth", "model_key.pth", "tutorial.pth", "ddp.pth"}) {
    INFO(name);
    const NamedTensors read = parse_torch_file(content_of(folder / name));
    REQUIRE(read.size() == expected.size());
    for (std::size_t i = 0; i < read.size(); ++i) {
      const std::string prefix = std::string(name) == "ddp.pth" ? "module." : "";
      CHECK(read[i].first == prefix + expected[i].first);
      CHECK(read[i].second.scalar_type() == expected[i].second.scalar_type());
      CHECK(torch::equal(read[i].second, expected[i].second));
    }
  }
  const auto error = [&](const char* name) {
    return message_of<TorchFileError>([&] { parse_torch_file(content_of(folder / name)); });
  };
  CHECK(contains(error("whole_model.pth"), "save model.state_dict()"));
  CHECK(contains(error("numbers.pth"), "'a' is not a tensor"));
  CHECK(contains(error("expanded.pth"), "'a' has more elements than data"));
  const auto model = model_of("resnet18", 10);
  CHECK(load_error(folder / "averaged.pth", *model) == "");
  CHECK(contains(load_error(folder / "old.pth", *model), "before PyTorch 1.6"));
}

TEST_CASE("an empty file of weights is called empty", "[trainer][checkpoint]") {
  const ScratchFolder folder;
  std::ofstream(folder / "weights.pth").close();
  const auto model = model_of("resnet18", 2);

  CHECK(contains(load_error(folder / "weights.pth", *model), "weights.pth is empty"));
}

TEST_CASE("a damaged file of torch.save is refused and harms nothing",
          "[trainer][checkpoint][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Python torch in .deps/peer");
  const ScratchFolder folder;
  REQUIRE(run_oracle(command("torch_files", folder), folder / "log") == 0);
  const std::string whole = content_of(folder / "plain.pth");
  const auto error = [](const std::string& bytes) {
    return message_of<TorchFileError>([&] { parse_torch_file(bytes); });
  };
  REQUIRE(error(whole) == "");
  for (std::size_t length = 0; length < whole.size(); length += 7) {
    REQUIRE(error(whole.substr(0, length)) != "");
  }
  const NamedTensors expected = parse_torch_file(whole);
  std::mt19937 random(3);
  for (int round = 0; round < 3'000; ++round) {
    std::string changed = whole;
    const std::size_t changes = 1 + random() % 4;
    for (std::size_t i = 0; i < changes; ++i) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    try {  // A byte that no reader needs may differ; what is read is right then.
      const NamedTensors read = parse_torch_file(changed);
      REQUIRE(read.size() == expected.size());
      for (std::size_t i = 0; i < read.size(); ++i) {
        REQUIRE(torch::equal(read[i].second, expected[i].second));
      }
    } catch (const TorchFileError&) {
    }
  }
}

TEST_CASE("weights for other classes are refused, and loaded below a new head",
          "[trainer][checkpoint]") {
  const ScratchFolder folder;
  torch::manual_seed(1);
  const auto given = model_of("resnet18", 1000);
  write_safetensors(folder / "w", make_weights({}, {}, *given));
  torch::manual_seed(2);
  const auto model = model_of("resnet18", 10);
  const torch::Tensor head = model->named_parameters()["fc.weight"].detach().clone();

  const std::string message = load_error(folder / "w", *model);
  CHECK(contains(message, "1000 classes"));
  CHECK(contains(message, "--new-head"));
  const std::string evaluated = load_error(folder / "w", *model, WeightsUse::Evaluation);
  CHECK(contains(evaluated, "1000 classes"));
  CHECK_FALSE(contains(evaluated, "--new-head"));
  load_weights_file(folder / "w", WeightsUse::TrainingNewHead, *model);

  CHECK(torch::equal(model->named_parameters()["conv1.weight"],
                     given->named_parameters()["conv1.weight"]));
  CHECK(torch::equal(model->named_parameters()["fc.weight"], head));
  const auto other = model_of("resnet34", 10);
  CHECK(contains(load_error(folder / "w", *other, WeightsUse::TrainingNewHead), "missing"));
}

TEST_CASE("a checkpoint and files without counters serve as weights", "[trainer][checkpoint]") {
  const ScratchFolder folder;
  const auto given = model_of("resnet18", 10);
  Safetensors file = make_checkpoint({}, {}, *given, {});
  std::erase_if(file.tensors,
                [](const auto& entry) { return entry.first.ends_with("num_batches_tracked"); });
  for (auto& entry : file.tensors) entry.first = "module." + entry.first;
  file.tensors.emplace_back("optimizer/momentum/conv1.weight", torch::ones({1}));
  write_safetensors(folder / "w", file);
  const auto model = model_of("resnet18", 10);

  load_weights_file(folder / "w", WeightsUse::Training, *model);

  CHECK(
      torch::equal(model->named_parameters()["fc.weight"], given->named_parameters()["fc.weight"]));
  // As a script saves that compiles its model.
  Safetensors compiled = make_weights({}, {}, *given);
  for (auto& entry : compiled.tensors) entry.first = "_orig_mod." + entry.first;
  write_safetensors(folder / "compiled", compiled);
  CHECK(load_error(folder / "compiled", *model_of("resnet18", 10)) == "");
  // What had diverged is not worth an evaluation.
  Safetensors ruined = make_weights({}, {}, *given);
  for (auto& [name, tensor] : ruined.tensors) {
    if (name == "fc.bias") tensor = torch::full_like(tensor, std::nan(""));
  }
  write_safetensors(folder / "ruined", ruined);
  CHECK(contains(load_error(folder / "ruined", *model_of("resnet18", 10)),
                 "an infinity or a NaN in 'fc.bias'"));
  const std::string missing = message_of<SafetensorsAccessError>(
      [&] { load_weights_file(folder / "none", WeightsUse::Training, *model); });
  CHECK(contains(missing, "No such file"));
  write_bytes(folder / "text", "these are no weights");
  CHECK_THROWS_AS(load_weights_file(folder / "text", WeightsUse::Training, *model),
                  SafetensorsError);
}

TEST_CASE("14.21: the labels of weights are compared where both sides tell what they mean",
          "[trainer][weights]") {
  const RunIdentity animals{.dataset = "imagefolder", .data = {.class_names = {"cat", "dog"}}};
  const RunIdentity digits{.dataset = "mnist"};
  const Metadata ours{{"model", "convnet"}, {"dataset", "imagefolder"}, {"class_names", "cat,dog"}};
  const Metadata other_order{
      {"model", "convnet"}, {"dataset", "csv"}, {"class_names", "dog,zebra"}};

  CHECK(label_difference(ours, animals).empty());
  CHECK(label_difference(other_order, animals) == "class 0 'dog' instead of 'cat' and 1 more");
  CHECK(label_difference(ours, digits) == "dataset 'imagefolder' instead of 'mnist'");
  CHECK(label_difference({{"model", "convnet"}, {"dataset", "mnist"}}, digits).empty());
  CHECK(label_difference({{"class_names", "['a', 'b']"}}, animals).empty());  // Not ours.
  CHECK(label_difference({}, animals).empty());
}

TEST_CASE("weights of a file of ours tell which pixels they know", "[trainer][weights]") {
  const RunIdentity digits{.dataset = "mnist", .normalization = {{0.1307F}, {0.3081F}}};
  Metadata ours{{"model", "convnet"}, {"dataset", "mnist"}, {"mean", "0.1307"}, {"std", "0.3081"}};

  CHECK(scale_difference(ours, digits).empty());
  ours["std"] = "0.5";
  CHECK(scale_difference(ours, digits) == "std '0.5' instead of '0.3081'");
  CHECK(scale_difference({{"mean", "[123, 117]"}}, digits).empty());  // Not ours.
}
