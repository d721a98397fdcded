// --data-parallel: how a batch is divided, and that a network's replicas train as it does.
#include "trainer/replicated_classifier.h"

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"
#include "trainer/models/model_zoo.h"
#include "trainer/optimizer/precision.h"

using namespace ddprun::trainer;

namespace {

std::shared_ptr<ImageClassifier> net_of(const char* name) {
  torch::manual_seed(5);
  return make_model({name, StemChoice::Auto, 3, 32, 10});
}

std::string error_of(std::int64_t micro_batch, std::int64_t last_batch, std::size_t replicas,
                     const char* model = "resnet18", bool synchronized = false) {
  const BatchPlan plan{.batch_size = micro_batch,
                       .micro_batch_size = micro_batch,
                       .global_batch_size = micro_batch,
                       .last_batch_size = last_batch};
  return message_of<UsageError>([&] {
    check_parts(plan, replicas, *make_model({model, StemChoice::ImageNet, 3, 32, 10}), 32,
                synchronized);
  });
}

}  // namespace

TEST_CASE("parts are those of torch.chunk", "[trainer][dp]") {
  for (std::int64_t images = 1; images < 20; ++images) {
    for (std::int64_t replicas = 1; replicas < 6; ++replicas) {
      const auto parts = torch::zeros({images}).chunk(replicas);
      CHECK(smallest_part(images, static_cast<std::size_t>(replicas)) == parts.back().size(0));
    }
  }
}

TEST_CASE("batches that replicas cannot share are refused by name", "[trainer][dp]") {
  CHECK(error_of(8, 8, 2) == "");
  CHECK(contains(error_of(2, 2, 3), "--data-parallel 3"));
  CHECK(contains(error_of(8, 3, 2), "last of an epoch"));
  CHECK(contains(error_of(9, 9, 8), "--batch-size"));
  CHECK(contains(error_of(8, 3, 2), "--sync-bn"));
  CHECK(error_of(8, 3, 2, "convnet") == "");
  CHECK(error_of(8, 3, 2, "resnet18", /*synchronized=*/true) == "");
  CHECK(contains(error_of(2, 2, 3, "resnet18", true), "--data-parallel 3"));
}

TEST_CASE("replicas of a network give its gradients in every precision", "[trainer][dp]") {
  const torch::Tensor images = torch::randn({6, 3, 32, 32});
  const torch::Tensor labels = torch::randint(10, {6}, torch::kInt64);
  for (const auto option : {PrecisionOption::Fp32, PrecisionOption::Bf16}) {
    const auto model = net_of("resnet20"), first = net_of("resnet20"), second = net_of("resnet20");
    ReplicatedClassifier replicated(model, {torch::kCPU, torch::kCPU}, [] {
      return make_model({"resnet20", StemChoice::Auto, 3, 32, 10});
    });
    {
      const AutocastGuard guard(torch::kCPU, option);
      torch::cross_entropy_loss(replicated.forward(images).to(torch::kFloat32), labels).backward();
      int part = 0;
      for (const auto& alone : {first, second}) {
        const torch::Tensor logits = alone->forward(images.narrow(0, 3 * part, 3));
        (torch::cross_entropy_loss(logits.to(torch::kFloat32), labels.narrow(0, 3 * part, 3)) / 2)
            .backward();
        ++part;
      }
    }
    const auto parameters = model->named_parameters();
    const auto halves = first->parameters(), others = second->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      INFO(name_of(option) << " " << parameters[i].key());
      const torch::Tensor expected = halves[i].grad() + others[i].grad();
      CHECK((parameters[i].value().grad() - expected).norm().item<double>() <=
            1e-3 * expected.norm().item<double>());
    }
    CHECK(torch::equal(model->named_buffers()["bn1.running_mean"],
                       first->named_buffers()["bn1.running_mean"]));
  }
}
