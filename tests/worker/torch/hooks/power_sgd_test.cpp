// PowerSGD beside its own formulas, written down once more in double, and what it promises: the
// same on all ranks, nothing lost for good, and no step that spoils the next one.
#include "worker/torch/hooks/power_sgd.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>

#include "tests/testing/catch.h"
#include "tests/worker/torch/small_net.h"

namespace ddprun::worker {
namespace {

constexpr std::int64_t rows = 24, columns = 16;

// Its gradient is what forward is given: a matrix, and a bias of a row.
struct GivenImpl : torch::nn::Module {
  GivenImpl() {
    weight = register_parameter("weight", torch::zeros({rows, columns}, at::kDouble));
    bias = register_parameter("bias", torch::zeros({columns}, at::kDouble));
  }
  at::Tensor forward(const at::Tensor& gradient) {
    return (weight * gradient).sum() + (bias * gradient[0]).sum();
  }
  at::Tensor weight, bias;
};
TORCH_MODULE(Given);

PowerSgdOptions of_rank(std::int64_t rank) { return {.rank = rank, .start_step = 0}; }

DataParallelOptions with(const PowerSgdOptions& power) {
  DataParallelOptions options;
  options.communication_hook = std::make_shared<PowerSgd>(power);
  return options;
}

at::Tensor random_matrix(std::uint64_t seed) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn({rows, columns}, generator, at::kDouble);
}

// Of the step's gradient of each rank. Result: by step, what rank 0 had, once it is known that all
// ranks had the same.
using Gradients = std::vector<std::vector<at::Tensor>>;  // By step and rank.
std::vector<at::Tensor> reduce_all(const Gradients& steps, const PowerSgdOptions& power,
                                   bool sum = false) {
  const int ranks = static_cast<int>(steps.front().size());
  std::vector<std::vector<at::Tensor>> results(static_cast<std::size_t>(ranks));
  run_ranks_well(ranks, [&](ThreadCommunicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    DataParallelOptions options = with(power);
    options.sum = sum;
    Given net;
    DistributedDataParallel ddp(net, communicator, options);
    for (const auto& gradients : steps) {
      ddp.zero_grad();
      ddp.forward(gradients[rank]).backward();
      results[rank].push_back(net->weight.grad().clone());
      at::Tensor bias = at::zeros({columns}, at::kDouble);  // Too small to become thin.
      for (const at::Tensor& gradient : gradients) bias += gradient[0];
      if (!sum) bias /= communicator.world_size();
      RANK_CHECK(at::allclose(net->bias.grad(), bias, 1e-9, 1e-12, /*equal_nan=*/true));
    }
  });
  for (const auto& other : results) {
    for (std::size_t step = 0; step < steps.size(); ++step) {
      const at::Tensor same = at::isclose(other[step], results[0][step], 0, 0, /*equal_nan=*/true);
      REQUIRE(same.all().item<bool>());
    }
  }
  return results[0];
}

at::Tensor average(const std::vector<at::Tensor>& tensors) { return at::stack(tensors).mean(0); }

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

// Gram and Schmidt's, not the QR decomposition that is tested.
at::Tensor orthogonal(at::Tensor p) {
  for (std::int64_t column = 0; column < p.size(1); ++column) {
    at::Tensor own = p.select(1, column);
    for (std::int64_t before = 0; before < column; ++before) {
      const at::Tensor other = p.select(1, before);
      own -= own.dot(other) * other;
    }
    own /= own.norm();
  }
  return p;
}

TEST_CASE("PowerSGD's gradients are those of its paper, step by step", "[worker][ddp][hook]") {
  const PowerSgdOptions options{.rank = 3, .start_step = 0, .seed = 11};
  Gradients steps;
  for (std::uint64_t step = 0; step < 4; ++step) {
    steps.push_back({random_matrix(10 * step), random_matrix(10 * step + 1)});
  }
  const auto results = reduce_all(steps, options);

  // The matrix is parameter 0.
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{11});
  at::Tensor q = at::randn({3, columns}, generator, at::kDouble).t();
  std::vector<at::Tensor> errors(2, at::zeros({rows, columns}, at::kDouble));
  for (std::size_t step = 0; step < steps.size(); ++step) {
    std::vector<at::Tensor> wanted, ps, qs;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      wanted.push_back(steps[step][rank] + errors[rank]);
      ps.push_back(wanted[rank].mm(q));
    }
    const at::Tensor p = orthogonal(average(ps));
    for (const at::Tensor& matrix : wanted) qs.push_back(matrix.t().mm(p));
    q = average(qs);
    const at::Tensor result = p.mm(q.t());
    for (std::size_t rank = 0; rank < 2; ++rank) errors[rank] = wanted[rank] - result;
    CHECK(distance(results[step], result) < 1e-9);
  }
}

TEST_CASE("gradients of a small rank come through whole", "[worker][ddp][hook]") {
  const auto column = [](std::uint64_t seed) { return random_matrix(seed).narrow(1, 0, 1); };
  const auto row = [](std::uint64_t seed) { return random_matrix(seed).narrow(0, 0, 1); };
  // Of rank 1 on each rank: their average is one of rank 2.
  Gradients steps;
  for (std::uint64_t step = 0; step < 3; ++step) {
    steps.push_back(
        {column(4 * step).mm(row(4 * step + 1)), column(4 * step + 2).mm(row(4 * step + 3))});
  }
  const auto results = reduce_all(steps, of_rank(2));
  for (std::size_t step = 0; step < steps.size(); ++step) {
    CHECK(distance(results[step], average(steps[step])) < 1e-9);
  }
}

TEST_CASE("what does not travel in one step does so in later ones", "[worker][ddp][hook]") {
  constexpr std::size_t count = 60;
  const std::vector<at::Tensor> gradients{random_matrix(1), random_matrix(2), random_matrix(3)};
  const auto results = reduce_all(Gradients(count, gradients), of_rank(2));
  const at::Tensor wanted = average(gradients);
  CHECK(distance(results[0], wanted) > 0.5);  // Two of 16 directions.
  const at::Tensor sum = at::stack(results).sum(0);
  CHECK(distance(sum / count, wanted) < 0.15);
}

TEST_CASE("a sum over the ranks is their number times the average", "[worker][ddp][hook]") {
  Gradients steps;
  for (std::uint64_t step = 0; step < 3; ++step) {
    steps.push_back({random_matrix(10 * step), random_matrix(10 * step + 1)});
  }
  const auto averages = reduce_all(steps, of_rank(2));
  const auto sums = reduce_all(steps, of_rank(2), /*sum=*/true);
  for (std::size_t step = 0; step < steps.size(); ++step) {
    CHECK(distance(sums[step], 2 * averages[step]) < 1e-9);
  }
}

TEST_CASE("gradients travel whole before the first step, and where thin ones would be no smaller",
          "[worker][ddp][hook]") {
  const Gradients steps(4, {random_matrix(1), random_matrix(2)});
  const at::Tensor whole = average(steps[0]);
  PowerSgdOptions late = of_rank(1);
  late.start_step = 2;
  const auto results = reduce_all(steps, late);
  CHECK(at::equal(results[0], whole));
  CHECK(at::equal(results[1], whole));
  CHECK(distance(results[2], whole) > 0.5);

  // 24 x 16 are 384 numbers, and thin ones of rank 4 are 160: 2.4 times fewer.
  PowerSgdOptions demanding = of_rank(4);
  demanding.min_compression = 2.5;
  CHECK(at::equal(reduce_all(steps, demanding)[0], whole));
  demanding.min_compression = 2.3;
  CHECK(distance(reduce_all(steps, demanding)[0], whole) > 0.1);
}

TEST_CASE("a gradient that is no number does not outlive its step", "[worker][ddp][hook]") {
  for (const double number :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    INFO(number);
    const std::vector<at::Tensor> good{random_matrix(1), random_matrix(2)};
    std::vector<at::Tensor> bad{random_matrix(3), random_matrix(4).clone()};
    bad[1][3][4] = number;
    Gradients steps(40, good);
    steps[2] = bad;
    const auto results = reduce_all(steps, of_rank(2));
    CHECK(
        at::isnan(results[2]).any().item<bool>());  // On all ranks: whoever looks can leave it out.
    const at::Tensor later = at::stack(std::vector(results.begin() + 3, results.end())).mean(0);
    CHECK(distance(later, average(good)) < 0.25);
  }
}

// Backward comes to them in another order than a plan is made for at first: then bucket 0 has
// another type.
TEST_CASE("matrices of two types are thinned in one step", "[worker][ddp][hook]") {
  struct Net : torch::nn::Module {
    Net() {
      single = register_parameter("single", torch::zeros({rows, columns}));
      wide = register_parameter("wide", torch::zeros({rows, columns}, at::kDouble));
    }
    at::Tensor forward(const at::Tensor& gradient) {
      const at::Tensor first = (wide * gradient).sum();
      return first + (single * gradient.to(at::kFloat)).sum();
    }
    at::Tensor single, wide;
  };
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp(net, communicator, with(of_rank(2)));
    // Of rank 1 on each rank, so that nothing is left out.
    const auto rank = static_cast<std::uint64_t>(communicator.rank());
    const auto own = [](std::uint64_t seed) {
      return random_matrix(seed).narrow(1, 0, 1).mm(random_matrix(seed + 10).narrow(0, 0, 1));
    };
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ddp.forward(own(rank)).backward();
      RANK_CHECK(distance(net->wide.grad(), average({own(0), own(1)})) < 1e-9);
      RANK_CHECK(distance(net->single.grad().to(at::kDouble), net->wide.grad()) < 1e-4);
    }
  });
}

TEST_CASE("of a convolution in either layout what PowerSGD says travels", "[worker][ddp][hook]") {
  struct Counting : ThreadCommunicator {
    using ThreadCommunicator::ThreadCommunicator;
    void all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                    Stream stream) override {
      total += static_cast<std::int64_t>(count * bytes_of(type));
      ThreadCommunicator::all_reduce(data, count, type, op, stream);
    }
    std::int64_t total = 0;
  };
  for (const auto layout : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    ThreadWorld world(2);
    run_ranks_well(2, [&](ThreadCommunicator& own) {
      Counting counting(world, own.rank());
      SmallNet net = seeded(1, [] { return SmallNet(); });
      for (at::Tensor& parameter : net->parameters()) {
        if (parameter.dim() == 4) parameter.set_data(parameter.detach().contiguous(layout));
      }
      DistributedDataParallel ddp(net, counting, with(of_rank(1)));
      const Batch batch = random_batch(static_cast<std::uint64_t>(own.rank()), 4);
      std::int64_t before = 0;
      for (int step = 0; step < 3; ++step) {
        before = counting.total;
        ddp.zero_grad();
        loss_of(ddp.forward(batch.images), batch).backward();
      }
      const auto said = power_sgd_bytes(net->parameters(), of_rank(1));
      RANK_CHECK(counting.total - before == said.travels);
      RANK_CHECK(said.travels < said.whole / 2);
    });
  }
}

TEST_CASE("with PowerSGD weights stay equal on all ranks, and a network learns",
          "[worker][ddp][hook]") {
  std::vector<std::vector<at::Tensor>> weights(3);
  std::vector<double> losses;
  run_ranks_well(3, [&](ThreadCommunicator& communicator) {
    SmallNet net = seeded(1, [] { return SmallNet(); });
    DataParallelOptions options = with(of_rank(1));
    options.buckets = tiny_buckets;
    DistributedDataParallel ddp(net, communicator, options);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const Batch batch = random_batch(static_cast<std::uint64_t>(communicator.rank()), 8);
    for (int step = 0; step < 150; ++step) {
      ddp.zero_grad();
      const at::Tensor loss = loss_of(ddp.forward(batch.images), batch);
      loss.backward();
      optimizer.step();
      if (communicator.rank() == 0) losses.push_back(loss.item<double>());
    }
    weights[static_cast<std::size_t>(communicator.rank())] = copies(net->parameters());
  });
  CHECK(all_equal(weights[0], weights[1]));
  CHECK(all_equal(weights[0], weights[2]));
  CHECK(losses.back() < losses.front() / 2);
}

TEST_CASE("what PowerSGD has left goes on in other processes, whatever their number and layout",
          "[worker][ddp][hook]") {
  const std::vector<std::int64_t> shape{16, 8, 3, 3};
  const std::vector<std::int64_t> dense{72, 9, 3, 1}, channels_last{72, 1, 24, 8};
  const auto gradient = [&](std::int64_t step, int rank) {
    const auto generator =
        at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(10 * step + rank % 2));
    return at::randn(shape, generator, at::kDouble);
  };
  struct Run {
    int ranks = 2;  // Or 4, with the gradients of two each: the average is the same.
    std::vector<std::int64_t> strides;
    std::int64_t first = 0, end = 0;  // Steps.
    PowerSgdOptions options = of_rank(3);
    bool shares = false;  // After step 3.
  };
  // `memory`: what they begin with, and what rank 0 has at the end, with the errors shared.
  const auto go = [&](const Run& of, PowerSgdMemory& memory) {
    std::vector<std::vector<at::Tensor>> results(static_cast<std::size_t>(of.ranks));
    std::vector<PowerSgdMemory> left(static_cast<std::size_t>(of.ranks));
    run_ranks_well(of.ranks, [&](ThreadCommunicator& communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      PowerSgd hook(of.options);
      if (memory.steps > 0) hook.restore(memory);
      for (std::int64_t step = of.first; step < of.end; ++step) {
        if (of.shares && step == 4) hook.share_errors(communicator);
        const at::Tensor values = at::zeros({16 * 72}, at::kDouble);
        const at::Tensor shaped = values.as_strided(shape, of.strides);
        shaped.copy_(gradient(step, communicator.rank()));
        hook.reduce({.index = 0, .values = values, .gradients = {{5, shaped}}}, communicator);
        results[rank].push_back(shaped.contiguous());
      }
      RANK_CHECK(!hook.errors_are_shared());
      hook.share_errors(communicator);
      RANK_CHECK(hook.errors_are_shared());
      left[rank] = hook.memory();
    });
    for (std::size_t rank = 1; rank < results.size(); ++rank) {
      CHECK(all_equal(results[rank], results[0]));
      CHECK(at::equal(left[rank].matrices.at(0).error, left[0].matrices.at(0).error));
    }
    memory = left[0];
    return results[0];
  };
  const auto close = [](const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    double most = 0;
    for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, distance(a[i], b[i]));
    return a.size() == b.size() && most < 1e-9;
  };
  const auto after_step_3 = [](const std::vector<at::Tensor>& all) {
    return std::vector(all.begin() + 4, all.end());
  };

  PowerSgdMemory none, at_end, cut;
  const auto alone = go({.strides = dense, .end = 8}, none);
  none = {};
  const auto whole = go({.strides = dense, .end = 8, .shares = true}, none);
  CHECK(close(alone, whole));  // Sharing changes nothing.
  go({.strides = dense, .end = 4}, cut);
  CHECK(cut.steps == 4);
  CHECK(cut.matrices.at(0).error.sizes() == shape);
  CHECK(cut.matrices.at(0).q.sizes() == std::vector<std::int64_t>{3, 8, 3, 3});
  const auto goes_on = [&](Run run) {
    at_end = cut;
    run.first = 4;
    run.end = 8;
    return go(run, at_end);
  };

  CHECK(all_equal(goes_on({.strides = dense}), after_step_3(whole)));  // Bit for bit.
  CHECK(close(goes_on({.ranks = 4, .strides = dense}), after_step_3(whole)));

  // In the other layout rows are the same, and columns in another order.
  CHECK(close(goes_on({.strides = channels_last}), after_step_3(whole)));
  CHECK(at_end.steps == 8);
  // Without the memory other gradients come.
  PowerSgdMemory lost;
  const auto anew = go({.strides = dense, .first = 4, .end = 8}, lost);
  CHECK_FALSE(close(anew, after_step_3(whole)));
}

TEST_CASE("what PowerSGD has left travels whole where all does from then on",
          "[worker][ddp][hook]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    PowerSgd thin(of_rank(1)), whole(of_rank(20));
    const auto step = [&](PowerSgd& hook) {
      const at::Tensor gradient = random_matrix(static_cast<std::uint64_t>(communicator.rank()));
      hook.reduce({.index = 0,
                   .values = gradient.view({-1}),
                   .gradients = {{.parameter = 0, .values = gradient}}},
                  communicator);
      return gradient;
    };
    const at::Tensor once = step(thin);
    thin.share_errors(communicator);
    whole.restore(thin.memory());
    const at::Tensor wanted = average({random_matrix(0), random_matrix(1)});
    RANK_CHECK(distance(once + step(whole), 2 * wanted) < 1e-9);
    RANK_CHECK(at::equal(step(whole), wanted));
  });
}

TEST_CASE("settings of PowerSGD that have no meaning are refused", "[worker][ddp][hook]") {
  CHECK_THROWS_AS(PowerSgd({.rank = 0}), std::invalid_argument);
  CHECK_THROWS_AS(PowerSgd({.start_step = -1}), std::invalid_argument);
  CHECK_THROWS_AS(PowerSgd({.min_compression = 0.5}), std::invalid_argument);
  CHECK_THROWS_AS(PowerSgd({.min_compression = std::nan("")}), std::invalid_argument);
}

}  // namespace
}  // namespace ddprun::worker
