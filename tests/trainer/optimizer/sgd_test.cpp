// The optimizer: equal to torch.optim.SGD.
#include "trainer/optimizer/sgd.h"

#include <map>

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"
#include "trainer/formats/safetensors.h"

using namespace ddprun::trainer;

namespace {

torch::Tensor parameter_of(std::vector<float> values) {
  return torch::tensor(values).requires_grad_();
}

}  // namespace

TEST_CASE("steps equal those of torch.optim.SGD", "[trainer][sgd][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Python torch in .deps/peer");
  const ScratchFolder folder;
  REQUIRE(run_oracle("sgd '" + (folder / "out").string() + "'", folder / "log") == 0);
  std::map<std::string, torch::Tensor> oracle;
  for (const auto& [name, tensor] : read_safetensors(folder / "out").tensors) oracle[name] = tensor;
  torch::Tensor weight = oracle.at("start").clone().requires_grad_();
  Sgd optimizer({{"weight", weight}}, {.momentum = 0.9, .weight_decay = 0.01});

  for (int step = 0; step < 5; ++step) {
    weight.mutable_grad() = oracle.at("gradient" + std::to_string(step)).clone();
    optimizer.step(0.1 / (step + 1));

    const torch::Tensor expected = oracle.at("weight" + std::to_string(step));
    CHECK((weight.detach() - expected).abs().max().item<double>() < 1e-6);
  }
}

TEST_CASE("the first step moves by the gradient, later ones by the momentum", "[trainer][sgd]") {
  torch::Tensor weight = parameter_of({1.0F, -2.0F});
  Sgd optimizer({{"w", weight}}, {.momentum = 0.5, .weight_decay = 0});
  weight.mutable_grad() = torch::tensor({1.0F, 1.0F});

  optimizer.step(0.1);
  CHECK(torch::allclose(weight.detach(), torch::tensor({0.9F, -2.1F})));
  optimizer.step(0.1);
  CHECK(torch::allclose(weight.detach(), torch::tensor({0.75F, -2.25F})));
}

TEST_CASE("a gradient in another memory order is applied to the right weights", "[trainer][sgd]") {
  const torch::Tensor start = torch::randn({4, 3, 3, 3});
  const torch::Tensor gradient = torch::randn({4, 3, 3, 3});
  torch::Tensor weight =
      start.contiguous(torch::MemoryFormat::ChannelsLast).clone().requires_grad_();
  weight.mutable_grad() = gradient.clone();
  Sgd optimizer({{"w", weight}}, {.momentum = 0.9, .weight_decay = 0});

  optimizer.step(1.0);

  CHECK(torch::allclose(weight.detach(), start - gradient));
}

TEST_CASE("a parameter without a gradient stays, and starts anew when it gets one",
          "[trainer][sgd]") {
  torch::Tensor used = parameter_of({1.0F});
  torch::Tensor unused = parameter_of({1.0F});
  Sgd optimizer({{"used", used}, {"unused", unused}}, {.momentum = 0.5, .weight_decay = 0.5});
  used.mutable_grad() = torch::tensor({1.0F});

  optimizer.step(0.1);
  CHECK(unused.item<float>() == 1.0F);
  REQUIRE(optimizer.momentum_buffers().size() == 1);
  CHECK(optimizer.momentum_buffers().front().first == "used");

  unused.mutable_grad() = torch::tensor({1.0F});
  optimizer.step(0.1);
  CHECK(unused.item<float>() == Approx(0.85F));
}

TEST_CASE("an optimizer goes on from saved momentum", "[trainer][sgd]") {
  const auto run = [](bool restart) {
    torch::Tensor weight = parameter_of({1.0F, 2.0F});
    auto optimizer = std::make_unique<Sgd>(
        std::vector<std::pair<std::string, torch::Tensor>>{{"w", weight}}, SgdOptions{});
    for (int step = 0; step < 6; ++step) {
      weight.mutable_grad() = weight.detach() * 0.3F;
      optimizer->step(0.1);
      if (restart && step == 2) {
        const auto saved = optimizer->momentum_buffers();
        optimizer = std::make_unique<Sgd>(
            std::vector<std::pair<std::string, torch::Tensor>>{{"w", weight}}, SgdOptions{});
        optimizer->load_momentum_buffers(saved);
      }
    }
    return weight.detach().clone();
  };
  CHECK(torch::equal(run(true), run(false)));
}

TEST_CASE("foreign momentum is refused by name", "[trainer][sgd]") {
  Sgd optimizer({{"w", parameter_of({1.0F})}}, {});
  const auto load = [&](const std::string& name, const torch::Tensor& tensor) {
    return message_of<std::invalid_argument>([&] {
      optimizer.load_momentum_buffers({{name, tensor}});
    });
  };
  CHECK(contains(load("v", torch::ones({1})), "'v'"));
  CHECK(contains(load("w", torch::ones({2})), "'w'"));
  CHECK(load("w", torch::ones({1})) == "");
}

TEST_CASE("the memory order of the weights does not matter", "[trainer][sgd]") {
  const auto trained = [](torch::MemoryFormat format) {
    torch::manual_seed(1);
    torch::Tensor weight = torch::randn({4, 3, 3, 3}).contiguous(format).clone().requires_grad_();
    Sgd optimizer({{"w", weight}}, {.momentum = 0.9, .weight_decay = 0.01});
    for (int step = 0; step < 4; ++step) {
      weight.mutable_grad() = torch::randn({4, 3, 3, 3}).contiguous(format);
      optimizer.step(0.1);
    }
    CHECK(weight.is_contiguous(format));
    return weight.detach();
  };

  // Not bit for bit: the last elements of a row go through another loop than the first ones.
  CHECK(torch::allclose(trained(torch::MemoryFormat::ChannelsLast),
                        trained(torch::MemoryFormat::Contiguous), 0, 1e-6));
}

TEST_CASE("the fused optimizer takes LibTorch's steps", "[trainer][sgd][fused]") {
  // Weights in both orders, one that another rule excludes, one that gets its first gradient late.
  const auto trained = [](bool own_kernel, bool restart) {
    torch::manual_seed(7);
    std::vector<std::pair<std::string, torch::Tensor>> parameters{
        {"conv", torch::randn({6, 5, 3, 3}).contiguous(torch::MemoryFormat::ChannelsLast).clone()},
        {"plain", torch::randn({5, 7})},
        {"bias", torch::randn({13})},
        {"late", torch::randn({1})}};
    for (auto& [name, parameter] : parameters) parameter.requires_grad_();
    const SgdOptions options{.momentum = 0.9,
                             .weight_decay = 0.05,
                             .nesterov = true,
                             .no_decay = {"bias"},
                             .own_kernel = own_kernel};
    auto optimizer = std::make_unique<Sgd>(parameters, options);
    for (int step = 0; step < 6; ++step) {
      for (auto& [name, parameter] : parameters) {
        const torch::Tensor gradient = torch::randn(parameter.sizes());  // Its order is plain.
        if (name != "late" || step >= 3) parameter.mutable_grad() = gradient;
      }
      optimizer->step(0.1 / (step + 1));
      if (!restart || step != 3) continue;
      const auto saved = optimizer->momentum_buffers();
      optimizer = std::make_unique<Sgd>(parameters, options);
      optimizer->load_momentum_buffers(saved);
    }
    return std::pair(parameters, optimizer->momentum_buffers());
  };

  const auto [expected, expected_momenta] = trained(false, false);
  const auto [own, momenta] = trained(true, false);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO(expected[i].first);
    CHECK(torch::allclose(own[i].second, expected[i].second, 1e-6, 1e-6));
    CHECK(momenta[i].first == expected_momenta[i].first);
    CHECK(torch::allclose(momenta[i].second, expected_momenta[i].second, 1e-6, 1e-6));
  }
  const auto [again, ignored] = trained(true, true);
  for (std::size_t i = 0; i < own.size(); ++i) CHECK(torch::equal(again[i].second, own[i].second));
}

TEST_CASE("a gradient of a 1 x 1 convolution is taken as it lies", "[trainer][sgd][fused]") {
  const torch::Tensor weight = torch::randn({6, 5, 1, 1});
  const torch::Tensor odd = torch::empty_strided({6, 5, 1, 1}, {5, 1, 5, 5});
  CHECK(same_order(weight, odd));
  CHECK_FALSE(same_order(weight, torch::empty_strided({6, 5, 1, 1}, {1, 6, 1, 1})));
  CHECK_FALSE(same_order(weight, torch::randn({6, 5, 1})));
  CHECK_FALSE(same_order(torch::randn({2, 3, 4, 4}),
                         torch::randn({2, 3, 4, 4}).contiguous(torch::MemoryFormat::ChannelsLast)));
  for (const bool own_kernel : {false, true}) {
    torch::Tensor parameter = weight.clone().requires_grad_();
    Sgd optimizer({{"w", parameter}}, {.weight_decay = 0, .own_kernel = own_kernel});
    odd.copy_(torch::ones({6, 5, 1, 1}));
    parameter.mutable_grad() = odd;
    optimizer.step(1);
    CHECK(torch::allclose(parameter.detach(), weight - 1));
  }
}

TEST_CASE("the fused optimizer refuses what its kernel cannot walk over", "[trainer][sgd][fused]") {
  torch::Tensor weight = torch::ones({3}, torch::kFloat64).requires_grad_();
  Sgd optimizer({{"w", weight}}, {.own_kernel = true});
  weight.mutable_grad() = torch::ones({3}, torch::kFloat64);
  CHECK(contains(message_of<std::invalid_argument>([&] { optimizer.step(0.1); }),
                 "was given a weight CPUDoubleType"));
}

TEST_CASE("a recorded update changes nothing, and finds its gradients when it is done again",
          "[trainer][sgd][fused]") {
  const auto slots_of = [](const torch::Tensor& weight, const torch::Tensor& gradient) {
    return std::vector<FusedSgd::Slot>{{.weight = weight, .gradient = gradient}};
  };
  const torch::Tensor weight = torch::zeros({5000}), rate = torch::full({}, 0.5F);
  const FusedSgd::Rule rule{.learning_rate = 99, .learning_rate_at = rate.data_ptr<float>()};
  FusedSgd optimizer;
  CHECK_THROWS_AS(optimizer.begin_recording(), std::logic_error);
  optimizer.step(slots_of(weight, torch::ones({5000})), rule, {});
  CHECK(torch::equal(weight, torch::full({5000}, -0.5F)));

  // As in a graph: gradients lie where they will lie in each replay.
  const torch::Tensor recorded_gradient = torch::full({5000}, 2.0F);
  optimizer.begin_recording();
  const SgdPass recorded = optimizer.step(slots_of(weight, recorded_gradient), rule, {});
  optimizer.end_recording();
  CHECK(torch::equal(weight, torch::full({5000}, -0.5F)));
  const auto replay = [&] { run_kernel(host_step_kernels().sgd, recorded, nullptr); };
  replay();
  CHECK(torch::equal(weight, torch::full({5000}, -1.5F)));

  // A step in between has its gradients elsewhere, and the rate is another one.
  const torch::Tensor other = torch::full({5000}, 4.0F);
  rate.fill_(0.25F);
  optimizer.step(slots_of(weight, other), rule, {});
  CHECK(torch::equal(weight, torch::full({5000}, -2.5F)));
  recorded_gradient.fill_(8.0F);
  replay();
  CHECK(torch::equal(weight, torch::full({5000}, -4.5F)));

  optimizer.begin_recording();
  CHECK_THROWS_AS(optimizer.step(slots_of(torch::zeros({7}), torch::zeros({7})), rule, {}),
                  std::logic_error);
}
