// Steps with working copies against autocast's own, to the bit; who writes the copies when; and
// that layers have their weights back.
#include "trainer/optimizer/working_copies.h"

#include <map>
#include <stdexcept>

#include "tests/testing/catch.h"
#include "tests/worker/torch/thread_communicator.h"
#include "trainer/models/device_batch_norm.h"
#include "trainer/models/model_zoo.h"
#include "trainer/models/padded_conv.h"
#include "trainer/optimizer/precision.h"
#include "trainer/optimizer/sgd.h"
#include "worker/torch/distributed_data_parallel.h"

using namespace ddprun::trainer;

namespace {

// Winograd's convolutions take float32 weights, which copies are not.
class WithoutWinograd {
 public:
  WithoutWinograd() { allow_winograd(false); }
  ~WithoutWinograd() { allow_winograd(true); }
  WithoutWinograd(const WithoutWinograd&) = delete;
  WithoutWinograd& operator=(const WithoutWinograd&) = delete;
};

std::shared_ptr<ImageClassifier> model_of(const std::string& name, std::int64_t side) {
  torch::manual_seed(7);
  auto model = make_model({.name = name, .image_size = side, .classes = 10});
  for (torch::Tensor& parameter : model->parameters()) {
    if (parameter.dim() != 4) continue;
    parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
  }
  return model;
}

struct Batch {
  torch::Tensor images, labels;
};

Batch batch_of(std::int64_t side, std::uint64_t seed) {
  torch::manual_seed(seed);
  return {torch::randn({4, 3, side, side}), torch::randint(10, {4})};
}

torch::Tensor loss_of(ImageClassifier& model, const Batch& batch, PrecisionOption precision) {
  const AutocastGuard autocast(torch::kCPU, precision);
  const torch::Tensor logits = model.forward(batch.images).to(torch::kFloat32);
  return torch::cross_entropy_loss(logits, batch.labels);
}

torch::Tensor loss_of(ImageClassifier& model, const Batch& batch, PrecisionOption precision,
                      WorkingCopies& copies) {
  const auto use = copies.use();
  return loss_of(model, batch, precision);
}

Sgd optimizer_of(ImageClassifier& model, bool own_kernel) {
  std::vector<std::pair<std::string, torch::Tensor>> parameters;
  for (const auto& entry : model.named_parameters()) {
    parameters.emplace_back(entry.key(), entry.value());
  }
  return Sgd(parameters, {.own_kernel = own_kernel});
}

void check_equal(const torch::nn::Module& found, const torch::nn::Module& expected) {
  const auto a = found.named_parameters(), b = expected.named_parameters();
  REQUIRE(a.size() == b.size());
  for (const auto& entry : a) {
    INFO(entry.key());
    CHECK(torch::equal(entry.value(), b[entry.key()]));
    CHECK(torch::equal(entry.value().grad(), b[entry.key()].grad()));
  }
}

void check_current(const WorkingCopies& copies) {
  for (const auto& [weight, copy] : copies.all()) {
    CHECK(torch::equal(copy, weight.to(copy.scalar_type())));
  }
}

// Small ones: a CPU convolves float16 a hundred times slower than float32. Of 4 pixels the last
// layers have one left, and take a product of matrices.
struct Case {
  std::string model;
  std::int64_t side;
  PrecisionOption precision;
};
const std::vector<Case> cases{{"resnet20", 8, PrecisionOption::Bf16},
                              {"resnet20", 8, PrecisionOption::Fp16},
                              {"resnet20", 4, PrecisionOption::Bf16}};

}  // namespace

TEST_CASE("steps with working copies have the bits of autocast's", "[working-copies]") {
  const WithoutWinograd direct;
  for (const auto& [name, side, precision] : cases) {
    for (const bool own_kernel : {false, true}) {
      INFO(name << " " << name_of(precision) << (own_kernel ? ", fused" : ""));
      const auto expected = model_of(name, side), found = model_of(name, side);
      WorkingCopies copies(*found, type_of(precision));
      Sgd expected_sgd = optimizer_of(*expected, own_kernel),
          sgd = optimizer_of(*found, own_kernel);
      if (own_kernel) sgd.write_copies(copies.all());
      for (std::uint64_t step = 0; step < 2; ++step) {
        // Two micro batches: the second one's gradients are added.
        for (const std::uint64_t part : {0, 1}) {
          const Batch batch = batch_of(side, 2 * step + part);
          const torch::Tensor loss = loss_of(*found, batch, precision, copies);
          const torch::Tensor should = loss_of(*expected, batch, precision);
          CHECK(torch::equal(loss, should));
          loss.backward();
          should.backward();
        }
        sgd.step(0.1);
        expected_sgd.step(0.1);
        copies.weights_changed(/*copies_too=*/sgd.writes_copies());
        if (own_kernel) check_current(copies);
        check_equal(*found, *expected);
        found->zero_grad();
        expected->zero_grad();
      }
    }
  }
}

TEST_CASE("copies follow weights that something else has changed", "[working-copies]") {
  const WithoutWinograd direct;
  const auto model = model_of("resnet20", 16);
  WorkingCopies copies(*model, torch::kBFloat16);
  REQUIRE(copies.all().size() == 21);  // 19 convolutions, and the last layer's two.
  loss_of(*model, batch_of(16, 1), PrecisionOption::Bf16, copies);
  check_current(copies);
  {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : model->parameters()) parameter.mul_(1.5);
  }
  copies.weights_changed(/*copies_too=*/false);
  loss_of(*model, batch_of(16, 1), PrecisionOption::Bf16, copies);
  check_current(copies);
}

TEST_CASE("a layer has its weight back, whatever its forward came to", "[working-copies]") {
  torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3)),
                              torch::nn::Linear(8, 2));
  auto& conv = *model[0]->as<torch::nn::Conv2dImpl>();
  auto& linear = *model[1]->as<torch::nn::LinearImpl>();
  const torch::Tensor weight = conv.weight, bias = linear.bias;
  WorkingCopies copies(*model, torch::kHalf);
  REQUIRE(copies.all().size() == 4);
  try {
    const auto use = copies.use();
    CHECK(conv.weight.scalar_type() == torch::kHalf);
    CHECK(linear.bias.scalar_type() == torch::kHalf);
    CHECK(model->parameters().front().is_same(weight));
    throw std::runtime_error("a forward that fails");
  } catch (const std::runtime_error&) {
    CHECK(conv.weight.is_same(weight));
    CHECK(linear.bias.is_same(bias));
  }
}

TEST_CASE(
    "gradients become float32, and those of our batch norms are computed, where they are reduced",
    "[working-copies]") {
  use_device_norms(true);
  ddprun::worker::run_ranks_well(2, [](ddprun::worker::ThreadCommunicator& communicator) {
    const auto model = model_of("resnet20", 8);
    WorkingCopies copies(*model, torch::kBFloat16);
    ddprun::worker::DistributedDataParallel<ImageClassifier> parallel(model, communicator);
    // Gradients as backward brings them, before they are taken in.
    std::map<std::string, const void*> brought;
    for (const auto& entry : model->named_parameters()) {
      entry.value().register_hook([&brought, name = entry.key()](const torch::Tensor& gradient) {
        brought[name] = gradient.data_ptr();
      });
    }
    const Batch batch = batch_of(8, 1);
    for (int step = 0; step < 2; ++step) {  // After the first one the places are settled.
      parallel.zero_grad();
      const AutocastGuard autocast(torch::kCPU, PrecisionOption::Bf16);
      const auto use = copies.use();
      parallel.forward(batch.images).to(torch::kFloat32).square().mean().backward();
    }
    for (const auto& entry : model->named_parameters()) {
      RANK_CHECK(brought[entry.key()] == entry.value().grad().data_ptr());
    }
  });
  use_device_norms(false);
}

TEST_CASE("a layer that a forward did not come to has no gradient", "[working-copies]") {
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 2));
  WorkingCopies copies(*model, torch::kBFloat16);
  {
    const auto use = copies.use();
    model[1]
        ->as<torch::nn::Linear>()
        ->forward(torch::ones({1, 4}, torch::kBFloat16))
        .sum()
        .backward();
  }
  CHECK_FALSE(model[0]->as<torch::nn::Linear>()->weight.grad().defined());
  const torch::Tensor gradient = model[1]->as<torch::nn::Linear>()->weight.grad();
  CHECK(gradient.scalar_type() == torch::kFloat32);
  CHECK(torch::equal(gradient, torch::ones({2, 4})));
}
