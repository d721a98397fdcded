// The networks: names, shapes and numbers equal to torchvision's.
#include <algorithm>
#include <set>
#include <sstream>
#include <stdexcept>

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/formats/safetensors.h"
#include "trainer/models/model_zoo.h"

using namespace ddprun::trainer;

namespace {

std::shared_ptr<ImageClassifier> model(const std::string& name, std::int64_t channels = 3,
                                       StemChoice stem = StemChoice::ImageNet,
                                       std::int64_t classes = 10) {
  return make_model({name, stem, channels, 32, classes});
}

std::size_t entries(const torch::nn::Module& module) {
  return module.named_parameters().size() + module.named_buffers().size();
}

std::int64_t parameter_count(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const torch::Tensor& parameter : module.parameters()) count += parameter.numel();
  return count;
}

struct Oracle {
  NamedTensors weights;
  std::map<std::string, torch::Tensor> others;
};

Oracle told_by_oracle(const std::filesystem::path& file) {
  Oracle oracle;
  for (const auto& [name, tensor] : read_safetensors(file).tensors) {
    if (name.starts_with("weights/")) {
      oracle.weights.emplace_back(name.substr(8), tensor);
    } else {
      oracle.others[name] = tensor;
    }
  }
  return oracle;
}

// The largest, relative to the largest value where that is above one.
double difference(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>() / std::max(1.0, b.abs().max().item<double>());
}

bool has_parameters(const torch::nn::Module& net, const NamedTensors& wanted) {
  const auto parameters = net.named_parameters();
  std::size_t equal = 0;
  for (const auto& [name, tensor] : wanted) {
    const torch::Tensor* ours = parameters.find(name);
    if (ours != nullptr && difference(*ours, tensor) < 1e-6) ++equal;
  }
  return equal == parameters.size();
}

}  // namespace

TEST_CASE("ResNets have torchvision's number of entries and parameters", "[trainer][model]") {
  const auto count = [](const char* name) {
    const auto net = model(name, 3, StemChoice::ImageNet, 1000);
    return std::pair(entries(*net), parameter_count(*net));
  };
  // torchvision's documented parameter counts.
  CHECK(count("resnet18") == std::pair<std::size_t, std::int64_t>(122, 11'689'512));
  CHECK(count("resnet34") == std::pair<std::size_t, std::int64_t>(218, 21'797'672));
  CHECK(count("resnet50") == std::pair<std::size_t, std::int64_t>(320, 25'557'032));
  CHECK(count("resnet101") == std::pair<std::size_t, std::int64_t>(626, 44'549'160));
  CHECK(count("resnet152") == std::pair<std::size_t, std::int64_t>(932, 60'192'808));
}

TEST_CASE("CIFAR ResNets have the parameter counts of the paper", "[trainer][model]") {
  // He et al., table 6: 0.27 M, 0.46 M, 0.66 M, 0.85 M, 1.7 M.
  CHECK(parameter_count(*model("resnet20")) == 269'722);
  CHECK(parameter_count(*model("resnet32")) == 464'154);
  CHECK(parameter_count(*model("resnet44")) == 658'586);
  CHECK(parameter_count(*model("resnet56")) == 853'018);
  CHECK(parameter_count(*model("resnet110")) == 1'727'962);
}

TEST_CASE("14.24: the tutorials' larger ConvNet has their number of parameters",
          "[trainer][model]") {
  CHECK(parameter_count(*make_model({"convnet-large", StemChoice::Auto, 1, 28, 10})) == 28'938);
}

TEST_CASE("every network maps images of one or three channels to scores", "[trainer][model]") {
  for (const char* name : {"resnet18", "resnet50", "resnet20", "convnet", "convnet-large"}) {
    for (const std::int64_t channels : {1, 3}) {
      INFO(name << " with " << channels << " channels");
      const auto net = make_model({name, StemChoice::Auto, channels, 28, 10});
      CHECK(net->forward(torch::randn({2, channels, 28, 28})).sizes() ==
            torch::IntArrayRef({2, 10}));
    }
  }
  CHECK_THROWS_AS(model("resnet19"), std::invalid_argument);
}

TEST_CASE("the small stem is chosen for images up to 64 pixels", "[trainer][model]") {
  CHECK(choose_stem(StemChoice::Auto, 64) == Stem::Small);
  CHECK(choose_stem(StemChoice::Auto, 65) == Stem::ImageNet);
  CHECK(choose_stem(StemChoice::ImageNet, 32) == Stem::ImageNet);
  CHECK(choose_stem(StemChoice::Small, 224) == Stem::Small);
}

TEST_CASE("a shortcut without parameters strides and pads with zeros", "[trainer][model]") {
  const auto net = make_model({"resnet20", StemChoice::Auto, 3, 32, 10});
  std::set<std::string> names;
  for (const auto& entry : net->named_parameters()) names.insert(entry.key());
  CHECK(names.contains("layer2.0.conv1.weight"));
  CHECK_FALSE(names.contains("layer2.0.downsample.0.weight"));
  CHECK(net->forward(torch::randn({1, 3, 32, 32})).sizes() == torch::IntArrayRef({1, 10}));
}

TEST_CASE("torchvision's weights give its logits, and its seed its weights",
          "[trainer][model][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Python torch in .deps/peer");
  struct Case {
    const char* name;
    std::int64_t channels;
    StemChoice stem;
    const char* stem_name;
  };
  const Case cases[] = {{"resnet18", 3, StemChoice::ImageNet, "imagenet"},
                        {"resnet34", 1, StemChoice::Small, "small"},
                        {"resnet50", 3, StemChoice::ImageNet, "imagenet"}};
  const ScratchFolder folder;
  std::ostringstream command;
  command << "models " << in_quotes(folder.path().string());
  for (const Case& c : cases) command << " " << c.name << ":" << c.channels << ":" << c.stem_name;
  const int code = run_oracle(command.str(), folder / "log");
  INFO(content_of(folder / "log"));
  REQUIRE(code == 0);
  for (const Case& c : cases) {
    INFO(c.name << " " << c.stem_name);
    const Oracle oracle = told_by_oracle(folder / c.name);
    torch::manual_seed(7);
    const auto net = model(c.name, c.channels, c.stem);
    // A stem that is put into theirs afterwards draws later than ours.
    if (c.stem == StemChoice::ImageNet) CHECK(has_parameters(*net, oracle.weights));

    load_weights(oracle.weights, "oracle", *net);  // Throws if a name or a shape differs.

    torch::NoGradGuard no_grad;
    net->eval();
    CHECK(difference(net->forward(oracle.others.at("images")), oracle.others.at("eval_logits")) <
          1e-5);
    net->train();
    // 53 normalisations by batch statistics enlarge what rounding leaves.
    CHECK(difference(net->forward(oracle.others.at("images")), oracle.others.at("train_logits")) <
          1e-4);
  }
}

TEST_CASE("a forward ends at the next block with what its hook throws", "[trainer][model]") {
  for (const char* const name : {"resnet18", "resnet20"}) {
    INFO(name);
    const auto net = model(name);
    const torch::Tensor images = torch::zeros({2, 3, 32, 32});
    int blocks = 0;
    net->on_block([&] {
      if (++blocks == 3) throw std::runtime_error("lost");
    });
    CHECK_THROWS_WITH(net->forward(images), "lost");
    CHECK(blocks == 3);

    net->on_block({});
    net->forward(images);
    CHECK(blocks == 3);
  }
}
