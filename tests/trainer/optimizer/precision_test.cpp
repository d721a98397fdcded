// Mixed precision: what runs in which type, and that networks train as they do in float32.
#include "trainer/optimizer/precision.h"

#include <ATen/autocast_mode.h>

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/recipe_state.h"
#include "trainer/formats/safetensors.h"
#include "trainer/models/model_zoo.h"
#include "trainer/optimizer/sgd.h"

using namespace ddprun::trainer;

namespace {

std::vector<torch::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> gradients;
  for (const torch::Tensor& parameter : module.parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

torch::Tensor flat(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& tensor : tensors) parts.push_back(tensor.flatten().to(torch::kFloat64));
  return torch::cat(parts);
}

double cosine(const torch::Tensor& a, const torch::Tensor& b) {
  return (a.dot(b) / (a.norm() * b.norm())).item<double>();
}

// The oracle of this test's subject; its output in `output`.
int run_precision_oracle(const std::string& arguments, const std::filesystem::path& output) {
  std::string command = "OMP_NUM_THREADS=1 '";
  command += oracle_python.string();
  command += "' -B '" DDPRUN_SOURCE_DIR "/tests/trainer/optimizer/precision_oracle.py' ";
  return run_command(command + arguments, output);
}

struct Step {
  double loss;
  torch::Tensor gradients;
};

// Forward and backward as training does it, with gradients divided by the scale; again while they
// are not finite, with the smaller scale.
Step run_step(ImageClassifier& net, const torch::Tensor& images, const torch::Tensor& labels,
              PrecisionOption option) {
  Precision precision(option, torch::kCPU);
  torch::Tensor loss;
  do {
    net.zero_grad();
    {
      const AutocastGuard guard = precision.autocast();
      loss = torch::cross_entropy_loss(net.forward(images).to(torch::kFloat32), labels);
    }
    precision.scaled(loss).backward();
  } while (!precision.accept(net.parameters()));
  return {loss.item<double>(), flat(gradients_of(net))};
}

// A step of bfloat16 has nearly the loss and the gradients of one of float32.
void check_step(const std::string& name) {
  INFO(name);
  torch::manual_seed(3);
  // Blocks that start as their shortcuts: otherwise rounding grows from block to block, and the
  // gradients of a hundred layers have nothing in common.
  const auto net = make_model({.name = name,
                               .stem = StemChoice::ImageNet,
                               .input_channels = 3,
                               .image_size = 32,
                               .classes = 10,
                               .zero_init_residual = true});
  const torch::Tensor images = torch::randn({4, 3, 32, 32});
  const torch::Tensor labels = torch::randint(10, {4}, torch::kInt64);

  const Step full = run_step(*net, images, labels, PrecisionOption::Fp32);
  const Step mixed = run_step(*net, images, labels, PrecisionOption::Bf16);

  CHECK(std::isfinite(full.loss));
  CHECK(std::isfinite(mixed.loss));
  CHECK(std::abs(mixed.loss - full.loss) < 0.01 * full.loss);
  for (const torch::Tensor& gradient : gradients_of(*net)) {
    CHECK(gradient.scalar_type() == torch::kFloat32);
  }
  CHECK(mixed.gradients.isfinite().all().item<bool>());
  CHECK(std::abs(mixed.gradients.norm().item<double>() / full.gradients.norm().item<double>() - 1) <
        0.25);
  CHECK(cosine(full.gradients, mixed.gradients) > 0.93);
}

}  // namespace

TEST_CASE("convolutions and products compute in the lower type, within the scope alone",
          "[trainer][precision]") {
  const torch::Tensor images = torch::randn({2, 3, 8, 8});
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 4, 3));
  const auto type = [&] { return conv->forward(images).scalar_type(); };
  {
    const AutocastGuard bf16(torch::kCPU, PrecisionOption::Bf16);
    CHECK(type() == torch::kBFloat16);
    {
      const AutocastGuard fp16(torch::kCPU, PrecisionOption::Fp16);
      CHECK(type() == torch::kFloat16);
    }
    CHECK(type() == torch::kBFloat16);
  }
  CHECK(type() == torch::kFloat32);
  const AutocastGuard none(torch::kCPU, PrecisionOption::Fp32);
  CHECK(type() == torch::kFloat32);
}

TEST_CASE("converted weights live no longer than the scope, so that changes are seen",
          "[trainer][precision]") {
  torch::nn::Linear linear(torch::nn::LinearOptions(8, 4).bias(false));
  const torch::Tensor x = torch::ones({1, 8});
  const auto value = [&] {
    const AutocastGuard guard(torch::kCPU, PrecisionOption::Bf16);
    const double first = linear->forward(x).sum().item<double>();
    CHECK(linear->forward(x).sum().item<double>() == first);
    return first;
  };
  {
    const torch::NoGradGuard no_grad;
    linear->weight.fill_(1);
  }
  CHECK(value() == 32);
  {
    const torch::NoGradGuard no_grad;
    linear->weight.fill_(2);
  }
  CHECK(value() == 64);
}

TEST_CASE("only float16 scales the loss, and gives the gradients back unscaled",
          "[trainer][precision]") {
  for (const auto option : {PrecisionOption::Fp32, PrecisionOption::Bf16, PrecisionOption::Fp16}) {
    Precision precision(option, torch::kCPU);
    torch::Tensor weight = torch::full({3}, 2.0F, torch::requires_grad());
    const torch::Tensor unused = torch::zeros({3}, torch::requires_grad());
    const torch::Tensor loss = (weight * 0.5F).sum();

    precision.scaled(loss).backward();
    const double before = weight.grad()[0].item<double>();
    CHECK(precision.accept({weight, unused}));

    CHECK(before == (option == PrecisionOption::Fp16 ? 32768 : 0.5));
    CHECK(weight.grad()[0].item<double>() == 0.5);
    CHECK((precision.scaler() != nullptr) == (option == PrecisionOption::Fp16));
  }
}

TEST_CASE("one element that is not finite anywhere rejects the step", "[trainer][precision]") {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    Precision precision(PrecisionOption::Fp16, torch::kCPU);
    std::vector<torch::Tensor> parameters;
    for (const std::int64_t size : {10, 1000, 3}) {
      parameters.push_back(torch::zeros({size}, torch::requires_grad()));
      parameters.back().mutable_grad() = torch::ones({size});
    }
    parameters[1].mutable_grad()[777] = bad;

    CHECK_FALSE(precision.accept(parameters));
    CHECK(precision.scaler()->scale() == 32768);

    parameters[1].mutable_grad().fill_(1);
    CHECK(precision.accept(parameters));
  }
}

TEST_CASE("gradients that no scale helps end training with advice", "[trainer][precision]") {
  Precision precision(PrecisionOption::Fp16, torch::kCPU);
  const torch::Tensor weight = torch::zeros({1}, torch::requires_grad());
  const std::string message = message_of<GradientsNotFinite>([&] {
    for (int step = 0; step < 1000; ++step) {
      weight.mutable_grad() = torch::full({1}, std::numeric_limits<float>::infinity());
      precision.accept({weight});
    }
  });
  CHECK(contains(message, "40 steps in a row"));
  CHECK(contains(message, "--lr"));
}

TEST_CASE("the loss scale is saved and restored to the last digit", "[trainer][precision]") {
  LossScaler saved({.initial_scale = 1234.5678F, .backoff_factor = 1.0 / 3});
  saved.decide(false);
  saved.decide(true);
  const PartState state = loss_scaler_part(saved).save();

  LossScaler restored;
  const CheckpointPart part = loss_scaler_part(restored);
  part.check(state);
  part.restore(state);

  CHECK(restored.scale() == saved.scale());
  CHECK(restored.state().growth_steps == 1);
  CHECK(contains(message_of<std::invalid_argument>([&] {
                   part.check({{}, {{"scale", "1e4x"}, {"growth_steps", "0"}}});
                 }),
                 "1e4x"));
  CHECK(message_of<std::invalid_argument>([&] { part.check({}); }) == "");
  part.restore({});
  CHECK(restored.scale() == 65536);
}

TEST_CASE("a ResNet takes a step in float32 and bfloat16 with like gradients",
          "[trainer][precision][models]") {
  for (const char* name : {"resnet18", "resnet50"}) check_step(name);
}

TEST_CASE("the other ResNets take such a step", "[.][long]") {
  for (const char* name : {"resnet34", "resnet101", "resnet152"}) check_step(name);
}

TEST_CASE("loss and gradients are those of Python's autocast", "[trainer][precision][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Python torch in .deps/peer");
  const ScratchFolder folder;  // Both types from one Python, whose start costs as much as one.
  REQUIRE(run_precision_oracle("autocast " + in_quotes(folder.path().string()), folder / "log") ==
          0);
  for (const std::string type : {"bf16", "fp16"}) {
    INFO(type);
    std::map<std::string, torch::Tensor> expected;
    for (const auto& [key, tensor] : read_safetensors(folder / type).tensors) {
      expected[key] = tensor;
    }
    const auto net = make_model({"resnet18", StemChoice::ImageNet, 3, 33, 10});
    load_weights(read_safetensors(folder / "weights").tensors, "oracle", *net);

    const auto option = type == "bf16" ? PrecisionOption::Bf16 : PrecisionOption::Fp16;
    const Step ours = run_step(*net, expected["images"], expected["labels"], option);

    // Not to the last digit: our batch normalisation rounds once where Python's rounds more often.
    CHECK(std::abs(ours.loss - expected["loss"].item<double>()) < 0.01 * ours.loss);
    std::vector<torch::Tensor> theirs;
    for (const auto& parameter : net->named_parameters()) {
      theirs.push_back(expected.at("gradients/" + parameter.key()));
    }
    CHECK(cosine(ours.gradients, flat(theirs)) > 0.9);
  }
}

TEST_CASE("a loss scale on the device decides as one on the host", "[trainer][precision][fused]") {
  struct Run {
    std::vector<double> scales;
    std::vector<std::int64_t> skipped;
    torch::Tensor weight;
    PartState saved;
  };
  const auto run = [](bool on_device) {
    Run result;
    Precision precision(PrecisionOption::Fp16, torch::kCPU);
    if (on_device) precision.keep_scale_on_device();
    torch::Tensor weight = torch::full({300}, 2.0F, torch::requires_grad());
    Sgd optimizer({{"w", weight}}, {.momentum = 0.9, .own_kernel = on_device});
    const CheckpointPart part = loss_scaler_part(
        *precision.scaler(), [&] { precision.catch_up(); }, [&] { precision.restored(); });
    part.restore({{}, {{"scale", "1024"}, {"growth_steps", "1990"}}});
    for (std::int64_t step = 1; step <= 30; ++step) {
      weight.mutable_grad() = torch::Tensor();
      precision.scaled((weight * 0.25F).sum()).backward();
      if (step == 1 || step == 20 || step == 21) {
        weight.mutable_grad()[299] = std::numeric_limits<float>::infinity();
      }
      if (precision.accept({weight})) optimizer.step(0.1, precision.device_scale());
      precision.step_done(step);
      for (const StepDecision& known : precision.take_decisions(/*wait=*/false)) {
        result.scales.push_back(known.decision.scale_after);
        if (!known.decision.take_step) result.skipped.push_back(known.step);
      }
    }
    result.weight = weight.detach();
    result.saved = part.save();
    return result;
  };

  const Run host = run(false), device = run(true);
  CHECK(device.scales == host.scales);
  CHECK(device.skipped == std::vector<std::int64_t>{1, 20, 21});
  CHECK(host.skipped == device.skipped);
  CHECK(torch::allclose(device.weight, host.weight, 1e-6, 1e-6));
  CHECK(device.saved.values == host.saved.values);
  CHECK(device.saved.values.at("growth_steps") == "9");
}

TEST_CASE("gradients that no scale on the device helps end training too",
          "[trainer][precision][fused]") {
  Precision precision(PrecisionOption::Fp16, torch::kCPU);
  precision.keep_scale_on_device();
  torch::Tensor weight = torch::zeros({1}, torch::requires_grad());
  Sgd optimizer({{"w", weight}}, {.own_kernel = true});
  std::int64_t step = 0;
  const std::string message = message_of<GradientsNotFinite>([&] {
    while (step < 1000) {
      weight.mutable_grad() = torch::full({1}, std::numeric_limits<float>::infinity());
      optimizer.step(0.1, precision.device_scale());
      precision.step_done(++step);
      precision.take_decisions(/*wait=*/false);
    }
  });
  CHECK(contains(message, "40 steps in a row"));
  CHECK(step == 40);
}
