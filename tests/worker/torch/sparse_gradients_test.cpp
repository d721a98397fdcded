// Embeddings whose gradients are sparse, against the same modules with dense ones.
#include "worker/torch/sparse_gradients.h"

#include <torch/nn/modules/embedding.h>

#include "tests/testing/catch.h"
#include "tests/worker/torch/thread_communicator.h"
#include "worker/torch/distributed_data_parallel.h"
#include "worker/torch/hooks/narrow_gradients.h"

namespace ddprun::worker {
namespace {

using torch::nn::Embedding;
using torch::nn::EmbeddingBag;
using torch::nn::EmbeddingBagOptions;
using torch::nn::EmbeddingOptions;
using torch::nn::Linear;

constexpr int word_count = 12;

struct TextNetImpl : torch::nn::Module {
  explicit TextNetImpl(bool sparse) {
    words = register_module("words", Embedding(EmbeddingOptions(word_count, 3).sparse(sparse)));
    pairs = register_module(
        "pairs", EmbeddingBag(EmbeddingBagOptions(word_count, 3).mode(torch::kSum).sparse(sparse)));
    out = register_module("out", Linear(3, 2));
  }
  at::Tensor forward(const at::Tensor& text, bool with_pairs = true) {
    at::Tensor hidden = words(text).sum(1);
    if (with_pairs) hidden = hidden + pairs(text);
    return out(hidden.tanh()).pow(2).sum();
  }
  Embedding words{nullptr};
  EmbeddingBag pairs{nullptr};
  Linear out{nullptr};
};
TORCH_MODULE(TextNet);

// Rows that come several times, on several ranks, and on one alone.
at::Tensor text(int rank, int step, std::int64_t lines = 3) {
  const at::Tensor places = torch::arange(lines * 2, at::kLong);
  return (places * (rank + 2) + 3 * step).remainder(word_count - 3).add(rank).view({lines, 2});
}

using Ddp = DistributedDataParallel<TextNetImpl>;
using Training = std::function<void(Ddp&, int rank)>;

// The same twice; what must hold whatever was done.
void train_both(int world, const Training& training, const DataParallelOptions& options = {},
                at::ScalarType type = at::kFloat, double tolerance = 1e-6, bool narrow = false) {
  std::vector<std::vector<at::Tensor>> gradients(static_cast<std::size_t>(world));
  run_ranks_well(world, [&](ThreadCommunicator& communicator) {
    const int rank = communicator.rank();
    std::vector<TextNet> nets;
    for (const bool sparse : {true, false}) {
      nets.push_back(seeded(1, [&] { return TextNet(sparse); }));
      nets.back()->to(type);
      DataParallelOptions own = options;
      if (narrow) own.communication_hook = std::make_shared<NarrowGradients>(at::kBFloat16);
      Ddp ddp(nets.back(), communicator, own);
      training(ddp, rank);
    }
    for (std::size_t i = 0; i < nets[0]->parameters().size(); ++i) {
      const at::Tensor sparse = nets[0]->parameters()[i].grad();
      const at::Tensor dense = nets[1]->parameters()[i].grad();
      RANK_CHECK(sparse.defined() == dense.defined());
      if (!sparse.defined()) continue;
      RANK_CHECK(sparse.is_sparse() == (i < 2));
      RANK_CHECK(at::allclose(sparse.to_dense(), dense, tolerance, tolerance));
      gradients[static_cast<std::size_t>(rank)].push_back(sparse.to_dense());
      if (sparse.is_sparse()) gradients[static_cast<std::size_t>(rank)].push_back(sparse.indices());
    }
  });
  for (const auto& of_rank : gradients) {
    REQUIRE(of_rank.size() == gradients[0].size());
    for (std::size_t i = 0; i < of_rank.size(); ++i) CHECK(at::equal(of_rank[i], gradients[0][i]));
  }
}

TEST_CASE("a sparse gradient stays sparse, with the rows of all ranks", "[worker][ddp][sparse]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    Embedding net = seeded(1, [] { return Embedding(EmbeddingOptions(10, 1).sparse(true)); });
    DistributedDataParallel ddp(net, communicator);

    const auto rows = communicator.rank() == 0 ? torch::tensor({3, 9, 3}) : torch::tensor({1, 3});
    ddp.forward(rows).sum().backward();

    const at::Tensor gradient = net->weight.grad();
    RANK_CHECK(gradient.is_sparse() && gradient.is_coalesced());
    RANK_CHECK(at::equal(gradient.indices(), torch::tensor({1, 3, 9}).view({1, 3})));
    RANK_CHECK(at::equal(gradient.values(), torch::tensor({0.5f, 1.5f, 0.5f}).view({3, 1})));
  });
}

TEST_CASE("sparse gradients have the values of dense ones, and equal bits on all ranks",
          "[worker][ddp][sparse]") {
  const auto steps = [](Ddp& ddp, int rank) {
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad(/*set_to_none=*/step == 1);
      ddp.forward(text(rank, step)).backward();
    }
  };
  train_both(3, steps);
  train_both(2, steps, {}, at::kDouble);
  train_both(3, steps, {}, at::kBFloat16, 0.05);
  SECTION("where a rank's batch is empty") {
    train_both(
        3, [](Ddp& ddp, int rank) { ddp.forward(text(rank, 0, rank == 1 ? 0 : 3)).backward(); });
    train_both(2, [](Ddp& ddp, int) { ddp.forward(text(0, 0, 0)).backward(); });
  }
  SECTION("where they accumulate") {
    train_both(2, [](Ddp& ddp, int rank) {
      for (int step = 0; step < 2; ++step) {
        const auto guard = ddp.no_sync();
        ddp.forward(text(rank, step)).backward();
      }
      ddp.forward(text(rank, 2)).backward();
      ddp.forward(text(rank, 3)).backward();  // Without zero_grad().
    });
  }
  SECTION("where a rank has no batch") {
    for (const bool accumulates : {false, true}) {
      train_both(3, [&](Ddp& ddp, int rank) {
        ddp.forward(text(rank, 0)).backward();
        ddp.zero_grad();
        if (accumulates) {
          const auto guard = ddp.no_sync();
          ddp.forward(text(rank, 1)).backward();
        }
        if (rank == 1) {
          ddp.reduce_without_backward();
        } else {
          ddp.forward(text(rank, 2)).backward();
        }
      });
    }
  }
  SECTION("beside gradients that a hook sends in 16 bits, and a static graph") {
    for (const bool static_graph : {false, true}) {
      DataParallelOptions options;
      options.buckets = {16, 64, 16};
      options.static_graph = static_graph;
      train_both(2, steps, options);
      train_both(2, steps, options, at::kFloat, 0.05, /*narrow=*/true);
    }
  }
}

TEST_CASE("a sparse gradient may be missing where a dense one may", "[worker][ddp][sparse]") {
  DataParallelOptions options;
  options.find_unused_parameters = true;
  SECTION("on one rank") {
    train_both(
        3, [](Ddp& ddp, int rank) { ddp.forward(text(rank, 0), rank != 1).backward(); }, options);
  }
  SECTION("on all of them") {
    train_both(
        2, [](Ddp& ddp, int rank) { ddp.forward(text(rank, 0), false).backward(); }, options);
  }
  SECTION("with that of an earlier step, which nobody has cleared") {
    for (const int user : {1, 2}) {  // A rank uses it in the second step, or none does.
      train_both(
          2,
          [&](Ddp& ddp, int rank) {
            ddp.forward(text(rank, 0)).backward();
            ddp.forward(text(rank, 1), rank == user).backward();
          },
          options);
    }
  }
  SECTION("in each step of a static graph") {
    options.static_graph = true;
    for (const int user : {1, 2}) {
      train_both(
          2,
          [&](Ddp& ddp, int rank) {
            for (int step = 0; step < 3; ++step) {
              ddp.zero_grad();
              ddp.forward(text(rank, step), rank == user).backward();
            }
          },
          options);
    }
  }
}

TEST_CASE("weights stay equal over steps with sparse gradients", "[worker][ddp][sparse]") {
  std::vector<at::Tensor> weights(3);
  run_ranks_well(3, [&](ThreadCommunicator& communicator) {
    const int rank = communicator.rank();
    TextNet net = seeded(static_cast<std::uint64_t>(rank), [] { return TextNet(true); });
    Ddp ddp(net, communicator);
    for (int step = 0; step < 5; ++step) {
      ddp.zero_grad();
      ddp.forward(text(rank, step)).backward();
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : net->parameters()) parameter.add_(parameter.grad(), -0.1);
    }
    weights[static_cast<std::size_t>(rank)] = net->words->weight.detach().clone();
  });
  CHECK(at::equal(weights[0], weights[1]));
  CHECK(at::equal(weights[0], weights[2]));
}

std::string refusal(const std::vector<std::exception_ptr>& errors) {
  const std::string message = message_of<std::invalid_argument>(errors[0]);
  for (const auto& error : errors) {
    const std::string other = message_of<std::invalid_argument>(error);
    if (other != message && other.find("rank 0: " + message) == std::string::npos) return other;
  }
  return message;
}

TEST_CASE("a gradient that is sparse against expectation is refused with the parameter's name",
          "[worker][ddp][sparse][errors]") {
  const auto errors = run_ranks(2, [](ThreadCommunicator& communicator) {
    Embedding net(EmbeddingOptions(5, 3));
    DistributedDataParallel ddp(net, communicator);
    ddp.zero_grad();
    net->options.sparse(communicator.rank() == 0);
    ddp.forward(torch::tensor({1, 2})).sum().backward();
  });
  CHECK(message_of<std::invalid_argument>(errors[0]).find(
            "the gradient of parameter 'weight' is sparse, and only that of an Embedding") == 0);
  CHECK(message_of<CommunicatorError>(errors[1]).find("rank 0: the gradient of") == 0);
}

TEST_CASE("a dense gradient of a module with sparse ones is refused",
          "[worker][ddp][sparse][errors]") {
  struct Tied : torch::nn::Module {
    Tied() { words = register_module("words", Embedding(EmbeddingOptions(5, 3).sparse(true))); }
    at::Tensor forward(const at::Tensor& x) { return at::mm(words(x), words->weight.t()).sum(); }
    Embedding words{nullptr};
  };
  const auto errors = run_ranks(2, [](ThreadCommunicator& communicator) {
    DistributedDataParallel<Tied> ddp(std::make_shared<Tied>(), communicator);
    ddp.forward(torch::tensor({1, 2})).backward();
  });
  const std::string messages =
      message_of<std::invalid_argument>(errors[0]) + message_of<std::invalid_argument>(errors[1]);
  CHECK(messages.find("the gradient of parameter 'words.weight' is dense") != std::string::npos);
}

TEST_CASE("where gradients are dense by what was asked for, sparse ones are refused at once",
          "[worker][ddp][sparse][errors]") {
  const auto wrap = [](bool sum, bool completes, bool sparse_on_all) {
    return run_ranks(2, [&](ThreadCommunicator& communicator) {
      const bool sparse = sparse_on_all || communicator.rank() == 0;
      Embedding net(EmbeddingOptions(5, 3).sparse(sparse));
      DataParallelOptions options;
      options.sum = sum;
      if (completes) options.complete_gradient = [](std::size_t, const at::Tensor&) {};
      DistributedDataParallel ddp(net, communicator, options);
    });
  };
  CHECK(refusal(wrap(true, false, true)).find("'weight' has a sparse gradient, and with sum") !=
        std::string::npos);
  CHECK(refusal(wrap(false, true, true)).find("with complete_gradient gradients are dense") !=
        std::string::npos);
  CHECK(message_of<ModelMismatch>(wrap(false, false, false)[1]).find("its gradient sparse") !=
        std::string::npos);
}

}  // namespace
}  // namespace ddprun::worker
