// The plain optimizer is the oracle: after any steps the weights have its bits on every rank, and
// so has what goes on from a file, of either of the two, with any number of ranks.
#include "worker/torch/zero/zero_redundancy_optimizer.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <sstream>

#include "tests/testing/catch.h"
#include "tests/testing/text.h"
#include "tests/worker/communicator_cluster.h"
#include "tests/worker/torch/small_net.h"
#include "worker/torch/model_agreement.h"

namespace ddprun::worker {
namespace {

using testing::contains;
using torch::optim::OptimizerParamGroup;
using ParamGroups = ZeroRedundancyOptimizer::ParamGroups;
using Make = ZeroRedundancyOptimizer::Make;

template <typename Optimizer, typename Options>
Make maker(const Options& options) {
  return [options](ParamGroups groups) {
    return std::make_unique<Optimizer>(std::move(groups), options);
  };
}

Make adam() { return maker<torch::optim::Adam>(torch::optim::AdamOptions(0.01)); }

// Every optimizer of LibTorch whose step takes each parameter for itself.
std::vector<std::pair<std::string, Make>> optimizers() {
  using namespace torch::optim;
  return {{"SGD", maker<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(1e-3))},
          {"Adam", maker<Adam>(AdamOptions(0.01).amsgrad(true))},
          {"AdamW", maker<AdamW>(AdamWOptions(0.01))},
          {"RMSprop", maker<RMSprop>(RMSpropOptions(0.01).momentum(0.5).centered(true))},
          {"Adagrad", maker<Adagrad>(AdagradOptions(0.1).lr_decay(0.01))}};
}

// Two groups; one weight in channels-last, one in bfloat16, one that never gets a gradient, and one
// without elements.
ParamGroups parameters() {
  return seeded(3, [] {
    const auto leaf = [](const at::Tensor& values) {
      return values.clone(at::MemoryFormat::Preserve).requires_grad_();
    };
    ParamGroups groups;
    groups.emplace_back(std::vector<at::Tensor>{
        leaf(torch::randn({8, 3, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast)),
        leaf(torch::randn({8})), leaf(torch::randn({7, 11}, at::kBFloat16))});
    groups.emplace_back(std::vector<at::Tensor>{leaf(torch::randn({5})), leaf(torch::randn({0, 2})),
                                                leaf(torch::randn({16, 10}))});
    return groups;
  });
}

std::vector<at::Tensor> all_of(const ParamGroups& groups) {
  std::vector<at::Tensor> all;
  for (const OptimizerParamGroup& group : groups) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

// The same gradients on all ranks, as DistributedDataParallel leaves them.
void fill_gradients(const ParamGroups& groups, int step) {
  seeded(static_cast<std::uint64_t>(1000 + step), [&] {
    for (const at::Tensor& parameter : all_of(groups)) {
      const at::Tensor gradient = torch::randn(parameter.sizes()).to(parameter.dtype());
      if (parameter.size(0) != 5) parameter.mutable_grad() = gradient;
    }
    return 0;
  });
}

void train(torch::optim::Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) {
    optimizer.zero_grad();
    fill_gradients(optimizer.param_groups(), step);
    optimizer.param_groups()[1].options().set_lr(0.05 / (1 + step));
    optimizer.step();
  }
}

std::vector<at::Tensor> plain_weights(const Make& make, int steps) {
  const auto plain = make(parameters());
  train(*plain, 0, steps);
  return all_of(plain->param_groups());
}

std::string saved(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream text;
  archive.save_to(text);
  return text.str();
}

void load(torch::optim::Optimizer& optimizer, const std::string& text) {
  torch::serialize::InputArchive archive;
  archive.load_from(text.data(), text.size());
  optimizer.load(archive);
}

void set_weights(const ParamGroups& groups, const std::vector<at::Tensor>& weights) {
  const at::NoGradGuard no_grad;
  const auto all = all_of(groups);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].copy_(weights[i]);
}

TEST_CASE("weights have the bits that the plain optimizer gives them", "[worker][zero]") {
  for (const auto& [name, make] : optimizers()) {
    const auto expected = plain_weights(make, 6);
    for (const int world : {1, 2, 3, 7}) {
      INFO(name << " on " << world << " ranks");
      run_ranks_well(world, [&, make = make](ThreadCommunicator& communicator) {
        ZeroRedundancyOptimizer optimizer(parameters(), communicator, make);
        train(optimizer, 0, 6);
        RANK_CHECK(all_equal(all_of(optimizer.param_groups()), expected));
      });
    }
  }
}

TEST_CASE("each parameter's state is on one rank, and what a rank has is its share",
          "[worker][zero]") {
  std::mutex mutex;
  std::size_t states = 0;
  run_ranks_well(3, [&](ThreadCommunicator& communicator) {
    ZeroRedundancyOptimizer optimizer(parameters(), communicator, adam());
    train(optimizer, 0, 2);
    std::size_t own = 0;
    for (const auto& group : optimizer.own_part().param_groups()) own += group.params().size();
    RANK_CHECK(own < all_of(parameters()).size());
    RANK_CHECK(optimizer.state().empty());
    const std::lock_guard lock(mutex);
    states += optimizer.own_part().state().size();
  });
  CHECK(states == all_of(parameters()).size() - 1);  // One never had a gradient.
}

TEST_CASE("a network that is wrapped trains to the same bits, over every wiring",
          "[worker][zero]") {
  const auto train_net = [](Communicator& communicator, const auto& make_optimizer) {
    at::set_num_threads(1);
    SmallNet net = seeded(1, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
    const auto optimizer = make_optimizer(net->parameters());
    torch::optim::StepLR schedule(*optimizer, /*step_size=*/2, /*gamma=*/0.5);
    for (std::uint64_t step = 0; step < 5; ++step) {
      const Batch batch = random_batch(step, 6).part(communicator.rank(), 3);
      const auto closure = [&] {
        optimizer->zero_grad();
        const at::Tensor loss = loss_of(ddp.forward(batch.images), batch);
        loss.backward();
        return loss;
      };
      RANK_CHECK(optimizer->step(closure).defined());
      schedule.step();
    }
    return copies(net->parameters());
  };
  for (const Wiring wiring : wirings) {
    INFO(name_of(wiring));
    const auto errors = spawn({3, wiring}, [&](Communicator& communicator) {
      const auto expected = train_net(communicator, [&](std::vector<at::Tensor> weights) {
        return std::make_unique<torch::optim::Adam>(std::move(weights), 0.01);
      });
      const auto got = train_net(communicator, [&](std::vector<at::Tensor> weights) {
        return std::make_unique<ZeroRedundancyOptimizer>(std::move(weights), communicator, adam());
      });
      RANK_CHECK(all_equal(got, expected));
    });
    require_no_errors(errors);
  }
}

TEST_CASE("what is brought together is the plain optimizer's state, for any number of ranks",
          "[worker][zero]") {
  for (const auto& [name, make] : optimizers()) {
    INFO(name);
    const auto expected = plain_weights(make, 7);
    std::string text;
    std::vector<at::Tensor> weights;
    run_ranks_well(7, [&, make = make](ThreadCommunicator& communicator) {
      ZeroRedundancyOptimizer optimizer(parameters(), communicator, make);
      train(optimizer, 0, 4);
      optimizer.consolidate(1);
      if (communicator.rank() == 1) {
        text = saved(optimizer);
        weights = copies(all_of(optimizer.param_groups()));
      }
      communicator.barrier(nullptr);
      train(optimizer, 4, 7);  // Nothing was taken from it.
      RANK_CHECK(all_equal(all_of(optimizer.param_groups()), expected));
    });

    const auto plain = make(parameters());
    set_weights(plain->param_groups(), weights);
    load(*plain, text);
    CHECK(plain->param_groups()[1].options().get_lr() == 0.05 / 4);
    const std::string of_plain = saved(*plain);
    train(*plain, 4, 7);
    CHECK(all_equal(all_of(plain->param_groups()), expected));

    for (const auto& [file, world] : {std::pair(text, 2), std::pair(of_plain, 7)}) {
      run_ranks_well(world, [&, make = make, &file = file](ThreadCommunicator& communicator) {
        ZeroRedundancyOptimizer optimizer(parameters(), communicator, make);
        set_weights(optimizer.param_groups(), weights);
        load(optimizer, file);
        RANK_CHECK(optimizer.param_groups()[1].options().get_lr() == 0.05 / 4);
        train(optimizer, 4, 7);
        RANK_CHECK(all_equal(all_of(optimizer.param_groups()), expected));
      });
    }
  }
}

TEST_CASE("a rank to which nothing was brought does not save a part for the whole",
          "[worker][zero]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    ZeroRedundancyOptimizer optimizer(parameters(), communicator, adam());
    train(optimizer, 0, 2);
    const auto refusal = [&] {
      return testing::message_of<std::logic_error>([&] { saved(optimizer); });
    };
    RANK_CHECK(contains(refusal(), "call consolidate("));
    optimizer.consolidate();
    RANK_CHECK(refusal().empty() == (communicator.rank() == 0));
    communicator.barrier(nullptr);
    train(optimizer, 2, 3);
    RANK_CHECK(contains(refusal(), "after the last step"));  // It is older than the weights.
    optimizer.consolidate();
    load(optimizer, saved(*adam()(parameters())));
    RANK_CHECK(!refusal().empty());                    // Of another file's state it knows nothing.
    RANK_CHECK(optimizer.own_part().state().empty());  // Nor is any there that the file has not.
  });
}

TEST_CASE("parameters that cannot be shared out are refused, by their places", "[worker][zero]") {
  const auto refusal = [](const ParamGroups& groups, Make make) {
    ThreadWorld world(1);
    ThreadCommunicator communicator(world, 0);
    return testing::message_of<std::invalid_argument>(
        [&] { ZeroRedundancyOptimizer(groups, communicator, std::move(make)); });
  };
  const auto leaf = [](const at::Tensor& tensor) { return at::Tensor(tensor).requires_grad_(); };
  const at::Tensor shared = leaf(torch::ones({3}));
  CHECK(contains(refusal({{{leaf(torch::ones({2})), shared}}, {{shared}}}, adam()),
                 "parameter 0 of group 1 [3] is there twice"));
  CHECK(contains(refusal({{{leaf(torch::ones({4, 6}).narrow(1, 0, 2))}}}, adam()),
                 "parameter 0 of group 0 [4, 2] has gaps"));
  CHECK(contains(refusal({{{leaf(torch::eye(3).to_sparse())}}}, adam()), "is sparse"));
  CHECK(contains(refusal({{{leaf(torch::ones({2}, at::kMeta))}}}, adam()), "[2] is on meta"));
  CHECK(contains(refusal({{{shared}}}, maker<torch::optim::LBFGS>(torch::optim::LBFGSOptions(1))),
                 "LBFGS needs all parameters at once"));
  const Make stubborn = [&](const ParamGroups&) {
    return std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{shared, shared}, 0.1);
  };
  CHECK(contains(refusal({{{shared}}}, stubborn), "other parameters than the groups"));
}

TEST_CASE("ranks with other parameters are told so before a step", "[worker][zero]") {
  for (const bool none : {false, true}) {
    const auto errors = run_ranks(2, [&](ThreadCommunicator& communicator) {
      ParamGroups groups = parameters();
      if (communicator.rank() == 1 && none) groups.clear();
      if (communicator.rank() == 1 && !none) groups[1].params()[2] = torch::ones({16, 9});
      ZeroRedundancyOptimizer(groups, communicator, adam());
    });
    CHECK(contains(message_of<ModelMismatch>(errors[1]),
                   none ? "on rank 1, it lacks parameter 0 of group 0"
                        : "on rank 1, it has parameter 2 of group 1"));
    CHECK(contains(message_of<ModelMismatch>(errors[0]), "different models"));
  }
}

}  // namespace
}  // namespace ddprun::worker
