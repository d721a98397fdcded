// The parts of a step beyond plain SGD, each against PyTorch or a plain computation.
#include <cmath>
#include <map>

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"
#include "trainer/batch_plan.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/recipe_state.h"
#include "trainer/formats/safetensors.h"
#include "trainer/models/model_zoo.h"
#include "trainer/optimizer/clip_gradients.h"
#include "trainer/optimizer/loss_guard.h"
#include "trainer/optimizer/model_average.h"
#include "trainer/optimizer/parameter_kinds.h"
#include "trainer/optimizer/sgd.h"
#include "trainer/sgd_options.h"

using namespace ddprun::trainer;

namespace {

using Tensors = std::map<std::string, torch::Tensor>;

Tensors ask_oracle(const std::string& command) {
  const ScratchFolder folder;
  const int code = run_oracle(command + " '" + (folder / "out").string() + "'", folder / "log");
  INFO(content_of(folder / "log"));
  REQUIRE(code == 0);
  Tensors tensors;
  for (const auto& [name, tensor] : read_safetensors(folder / "out").tensors) {
    tensors[name] = tensor.clone();
  }
  return tensors;
}

double difference(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

// The rule of trainer/optimizer/lars.h, a layer at a time in double precision.
struct PlainLars {
  double momentum, decay, trust;
  torch::Tensor buffer;

  void step(torch::Tensor& weight, const torch::Tensor& gradient, double rate, bool adapts) {
    const torch::Tensor wide = gradient.to(torch::kFloat64);
    const double own_decay = adapts ? decay : 0;
    const double weight_norm = std::sqrt(weight.square().sum().item<double>());
    const double gradient_norm = std::sqrt(wide.square().sum().item<double>());
    double local = 1;
    if (adapts && weight_norm > 0 && gradient_norm > 0) {
      local = trust * weight_norm / (gradient_norm + own_decay * weight_norm);
    }
    const torch::Tensor update = rate * local * (wide + own_decay * weight);
    buffer = buffer.defined() ? momentum * buffer + update : update;
    weight = weight - buffer;
  }
};

}  // namespace

TEST_CASE("nesterov and parameters without decay step as in PyTorch", "[trainer][recipe][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Python torch in .deps/peer");
  const Tensors oracle = ask_oracle("nesterov");
  torch::Tensor weight = oracle.at("start").clone().requires_grad_();
  torch::Tensor bias = oracle.at("start").clone().requires_grad_();
  Sgd optimizer({{"weight", weight}, {"bias", bias}},
                {.momentum = 0.9, .weight_decay = 0.01, .nesterov = true, .no_decay = {"bias"}});
  for (int step = 0; step < 5; ++step) {
    const std::string number = std::to_string(step);
    weight.mutable_grad() = oracle.at("gradient" + number).clone();
    bias.mutable_grad() = oracle.at("gradient" + number).clone();

    optimizer.step(0.1 / (step + 1));

    CHECK(difference(weight.detach(), oracle.at("weight" + number)) < 1e-6);
    CHECK(difference(bias.detach(), oracle.at("bias" + number)) < 1e-6);
  }
  CHECK(difference(weight.detach(), bias.detach()) > 1e-3);
}

TEST_CASE("the average is that of PyTorch's AveragedModel", "[trainer][recipe][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Python torch in .deps/peer");
  const Tensors oracle = ask_oracle("average");
  torch::nn::BatchNorm2d norm(3);
  ModelAverage average(*norm, 0.8);
  CHECK_FALSE(average.started());
  for (int step = 0; step < 5; ++step) {
    torch::NoGradGuard no_grad;
    norm->weight.copy_(oracle.at("weight" + std::to_string(step)));
    norm->running_mean.copy_(oracle.at("mean" + std::to_string(step)));
    norm->num_batches_tracked.fill_(step + 1);
    average.update();
  }
  Tensors own;
  for (const auto& [name, tensor] : average.tensors()) own[name] = tensor;
  CHECK(difference(own.at("weight"), oracle.at("weight")) < 1e-6);
  CHECK(difference(own.at("running_mean"), oracle.at("mean")) < 1e-6);
  CHECK(own.at("num_batches_tracked").item<std::int64_t>() == 5);

  const torch::Tensor trained = norm->weight.detach().clone();
  {
    const ModelAverage::Swap swap(average);
    CHECK(difference(norm->weight.detach(), oracle.at("weight")) < 1e-6);
  }
  CHECK(torch::equal(norm->weight.detach(), trained));
  CHECK(difference(own.at("weight"), oracle.at("weight")) < 1e-6);
}

TEST_CASE("gradients are clipped as by clip_grad_norm_", "[trainer][recipe][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Python torch in .deps/peer");
  const Tensors oracle = ask_oracle("clip");
  for (const std::string limit : {"0.5", "100"}) {
    std::vector<torch::Tensor> parameters;
    for (const char* name : {"a", "b"}) {
      parameters.push_back(torch::zeros_like(oracle.at(name)).requires_grad_());
      parameters.back().mutable_grad() = oracle.at(name).clone();
    }
    parameters.push_back(torch::zeros({3}).requires_grad_());  // Without a gradient.

    const torch::Tensor norm = clip_gradients(parameters, std::stod(limit));

    CHECK(norm.item<double>() == Approx(oracle.at("norm").item<double>()));
    CHECK(difference(parameters[0].grad(), oracle.at("a" + limit)) < 1e-6);
    CHECK(difference(parameters[1].grad(), oracle.at("b" + limit)) < 1e-6);
    CHECK_FALSE(parameters[2].grad().defined());
  }
  CHECK(clip_gradients({torch::zeros({3}).requires_grad_()}, 1).item<double>() == 0);
}

TEST_CASE("LARS steps as its formula says, for each layer by itself", "[trainer][recipe][lars]") {
  torch::manual_seed(5);
  const torch::Tensor start = torch::randn({6, 3, 3, 3});
  torch::Tensor weight =
      start.contiguous(torch::MemoryFormat::ChannelsLast).clone().requires_grad_();
  torch::Tensor other = (torch::randn({5, 6}) * 40).requires_grad_();
  torch::Tensor bias = torch::randn({5}).requires_grad_();
  torch::Tensor zero = torch::zeros({4}).requires_grad_();
  Sgd optimizer({{"weight", weight}, {"other", other}, {"bias", bias}, {"zero", zero}},
                {.momentum = 0.9,
                 .weight_decay = 0.01,
                 .no_decay = {"bias"},
                 .lars = LarsOptions{.trust = 0.02, .not_adapted = {"bias"}}});
  std::vector<torch::Tensor*> parameters{&weight, &other, &bias, &zero};
  std::vector<torch::Tensor> expected;
  std::vector<PlainLars> rules(4, PlainLars{0.9, 0.01, 0.02, {}});
  for (const torch::Tensor* p : parameters) expected.push_back(p->detach().to(torch::kFloat64));

  for (int step = 0; step < 4; ++step) {
    const double rate = 2.0 / (step + 1);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const torch::Tensor gradient = torch::randn(parameters[i]->sizes());
      parameters[i]->mutable_grad() = gradient.clone();
      rules[i].step(expected[i], gradient, rate, parameters[i] != &bias);
    }
    optimizer.step(rate);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      INFO("step " << step << ", parameter " << i);
      const double size = expected[i].abs().max().item<double>();
      CHECK(difference(parameters[i]->detach().to(torch::kFloat64), expected[i]) / size < 1e-5);
    }
  }
}

TEST_CASE("LARS goes on from saved momentum", "[trainer][recipe][lars]") {
  const auto run = [](bool restart) {
    torch::Tensor weight = torch::tensor({1.0F, 2.0F}).requires_grad_();
    const SgdOptions options{.lars = LarsOptions{.trust = 0.1}};
    auto optimizer = std::make_unique<Sgd>(
        std::vector<std::pair<std::string, torch::Tensor>>{{"w", weight}}, options);
    for (int step = 0; step < 6; ++step) {
      weight.mutable_grad() = weight.detach() * 0.3F;
      optimizer->step(0.1 * (step + 1));
      if (restart && step == 2) {
        const auto saved = optimizer->momentum_buffers();
        optimizer = std::make_unique<Sgd>(
            std::vector<std::pair<std::string, torch::Tensor>>{{"w", weight}}, options);
        optimizer->load_momentum_buffers(saved);
      }
    }
    return weight.detach().clone();
  };
  CHECK(torch::equal(run(true), run(false)));
}

TEST_CASE("what has no decay and no rate of its own is found by its module", "[trainer][recipe]") {
  const auto net = make_model({"resnet18", StemChoice::Small, 3, 32, 10});
  const auto norms = excluded_parameters(*net, {.batch_norm = true});
  CHECK(norms.size() == 40);  // 20 normalisations.
  CHECK(norms.contains("layer2.0.downsample.1.weight"));
  CHECK_FALSE(norms.contains("fc.bias"));
  const auto biases = excluded_parameters(*net, {.bias = true});
  CHECK(biases.size() == 21);
  CHECK(biases.contains("fc.bias"));
  CHECK(biases.contains("layer1.0.bn1.bias"));
  CHECK(excluded_parameters(*net, {}).empty());

  TrainOptions options;
  CHECK(sgd_options(options, *net, /*own_kernel=*/false).no_decay.empty());
  CHECK_FALSE(sgd_options(options, *net, /*own_kernel=*/false).lars);
  options.optimizer = OptimizerKind::Lars;
  CHECK(sgd_options(options, *net, /*own_kernel=*/false).no_decay.size() == 41);
  CHECK(sgd_options(options, *net, /*own_kernel=*/false).lars->not_adapted.size() == 41);
  options.no_decay = DecayExclusion{};
  CHECK(sgd_options(options, *net, /*own_kernel=*/false).no_decay.empty());
  CHECK(sgd_options(options, *net, /*own_kernel=*/false).lars->not_adapted.size() == 41);
}

TEST_CASE("with zero-init the last scale of each block is zero, the rest as before",
          "[trainer][recipe]") {
  for (const std::string name : {"resnet18", "resnet50", "resnet20"}) {
    const auto make = [&](bool zero) {
      torch::manual_seed(3);
      return make_model({name, StemChoice::Small, 3, 16, 10, zero});
    };
    const auto plain = make(false)->named_parameters();
    std::size_t zeros = 0;
    for (const auto& item : make(true)->named_parameters()) {
      if (torch::equal(item.value(), plain[item.key()])) continue;
      CHECK(item.key().ends_with(name == "resnet50" ? "bn3.weight" : "bn2.weight"));
      CHECK(item.value().abs().max().item<double>() == 0);
      ++zeros;
    }
    CHECK(zeros == (name == "resnet50" ? 16U : name == "resnet18" ? 8U : 9U));
  }
}

TEST_CASE("an average goes through a checkpoint, or starts anew without one", "[trainer][recipe]") {
  torch::nn::Linear net(2, 2), other(2, 2);
  ModelAverage saved(*net, 0.5), restored(*other, 0.5);
  CHECK(average_part(saved).save().tensors.empty());
  saved.update();
  {
    torch::NoGradGuard no_grad;
    net->weight.add_(1);
  }
  saved.update();
  const PartState state = average_part(saved).save();

  average_part(restored).check(state);
  average_part(restored).restore(state);

  CHECK(restored.started());
  CHECK(torch::equal(restored.tensors()[0].second, saved.tensors()[0].second));
  average_part(restored).restore({});
  CHECK_FALSE(restored.started());

  PartState wrong = state;
  wrong.tensors[0].second = torch::zeros({3, 2});
  CHECK(contains(message_of<std::invalid_argument>([&] { average_part(restored).check(wrong); }),
                 "'weight'"));
  wrong.tensors.erase(wrong.tensors.begin());
  CHECK(contains(message_of<std::invalid_argument>([&] { average_part(restored).check(wrong); }),
                 "lack 'weight'"));
}

TEST_CASE("momentum of the other rule is refused", "[trainer][recipe]") {
  const auto error = [](OptimizerKind kind, const PartState& state) {
    return message_of<ForeignCheckpointError>([&] { optimizer_kind_part(kind).check(state); });
  };
  const PartState lars = optimizer_kind_part(OptimizerKind::Lars).save();
  CHECK(error(OptimizerKind::Lars, lars) == "");
  CHECK(contains(error(OptimizerKind::Sgd, lars), "--optimizer lars"));
  CHECK(error(OptimizerKind::Sgd, {}) == "");  // A checkpoint of before there was a choice.
  CHECK(contains(error(OptimizerKind::Lars, {}), "--optimizer sgd"));
}

TEST_CASE("a loss that is not a number names step, rank and samples", "[trainer][recipe]") {
  LossGuard guard(3);
  CHECK_FALSE(guard.last());
  guard.watch(torch::tensor(0.5F), {1, 0, {}});
  CHECK(guard.last() == 0.5);
  const std::string message = message_of<TrainingError>([&] {
    guard.watch(torch::tensor(std::nanf("")), {17, 2, {5, 900, 31}});
  });
  CHECK(contains(message, "rank 3: the loss is nan at step 17 (epoch 3)"));
  CHECK(contains(message, ": lower --lr"));
  CHECK(message.ends_with("again: 5, 900, 31"));
  CHECK(contains(message_of<TrainingError>([&] { guard.watch(torch::tensor(INFINITY), {}); }),
                 "the loss is inf"));
  CHECK(contains(bad_loss_message(0, NAN, {1, 0, std::vector<std::int64_t>(300, 7)}),
                 "and 292 more"));
}

TEST_CASE("a loss of sums that a lost peer has ended is not called bad", "[trainer][recipe]") {
  const ScratchFolder folder;
  bool ended = false;
  LossGuard guard(
      3, [&] { return folder / "."; },
      [&] {
        if (ended) throw std::runtime_error("rank 1 is gone");
      });
  const auto meet_nan = [&] { guard.watch(torch::tensor(std::nanf("")), {17, 2, {5}}); };
  CHECK_THROWS_AS(meet_nan(), BadLossError);
  std::filesystem::remove(folder / "bad_loss_step_17_rank_3.txt");
  ended = true;
  CHECK_THROWS_WITH(meet_nan(), "rank 1 is gone");
  CHECK_FALSE(std::filesystem::exists(folder / "bad_loss_step_17_rank_3.txt"));
}

TEST_CASE("a peer learns the step of a bad loss from the words alone", "[trainer][recipe]") {
  for (const double loss : {NAN, INFINITY, -INFINITY}) {
    const std::string words = bad_loss_message(1, loss, {12'345, 2, {5}}, "/somewhere");
    CHECK(bad_loss_step("barrier(): rank 1 failed: " + words) == 12'345);
  }
  const std::string nearly = "rank 1: the loss is high: the loss is inf at step 9 (epoch 1)";
  CHECK(bad_loss_step(nearly) == 9);
  for (const std::string step : {"", "0", "-9", "+9", "9 ", "99999999999999999999", "9x"}) {
    CHECK_FALSE(bad_loss_step("rank 1: the loss is nan at step " + step + " (epoch 1)"));
  }
  CHECK_FALSE(bad_loss_step("rank 1: the loss is nan at step 9"));
  CHECK_FALSE(bad_loss_step("rank 1 failed: connection reset by peer"));
  CHECK_FALSE(bad_loss_step(""));
}

TEST_CASE("17.1: the samples of a bad loss are in a file", "[trainer][recipe]") {
  const ScratchFolder folder;
  LossGuard guard(3, [&] { return folder / "."; });
  const std::string message = message_of<TrainingError>([&] {
    guard.watch(torch::tensor(std::nanf("")), {17, 2, {5, 900, 31}});
  });
  CHECK(contains(message, "they are listed in "));
  CHECK(contains(message, "bad_loss_step_17_rank_3.txt"));
  CHECK(content_of(folder / "bad_loss_step_17_rank_3.txt") == "5\n900\n31\n");
  CHECK(list_samples(folder / "none", 0, {1, 0, {7}}).empty());
  CHECK(list_samples(folder / ".", 0, {1, 0, {}}).empty());

  const auto name = [](std::int64_t sample) { return sample == 5 ? "/data/cat/1.jpg" : ""; };
  CHECK(content_of(list_samples(folder / ".", 0, {1, 0, {5, 900}}, name)) ==
        "5 /data/cat/1.jpg\n900\n");
}

TEST_CASE("a step of several micro batches counts as one batch", "[trainer][plan][recipe]") {
  TrainOptions options;
  options.batch_size = 8;
  options.accumulate = 4;
  const BatchPlan plan = plan_batches(options, 1001, 2);
  CHECK(plan.micro_batch_size == 8);
  CHECK(plan.batch_size == 32);
  CHECK(plan.global_batch_size == 64);
  CHECK(plan.steps_per_epoch == 16);
  CHECK(plan.last_batch_size == 21);

  options.batch_size.reset();
  options.global_batch_size = 64;
  CHECK(plan_batches(options, 1001, 2).micro_batch_size == 8);
  options.global_batch_size = 60;
  CHECK(
      contains(message_of<UsageError>([&] { plan_batches(options, 1001, 2); }), "--accumulate 4"));
}

TEST_CASE("a last micro batch of one image is refused unless others normalise with it",
          "[trainer][plan][recipe]") {
  TrainOptions options;
  options.batch_size = 4;
  options.accumulate = 2;
  const auto model = make_model({"resnet20", StemChoice::Auto, 3, 4, 10});
  const auto error = [&](std::int64_t images, int world, int together) {
    const BatchPlan plan = plan_batches(options, images, world);
    return message_of<UsageError>([&] { check_last_batch(plan, *model, 4, together); });
  };
  CHECK(contains(error(21, 1, 1), "--batch-size"));  // 8 + 8 + (4 + 1)
  CHECK(error(22, 1, 1) == "");
  CHECK(error(20, 1, 1) == "");
  CHECK(contains(error(42, 2, 1), "--sync-bn"));
  CHECK(error(42, 2, 2) == "");
}
