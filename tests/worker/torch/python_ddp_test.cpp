// Odd ways to train against what Python's DistributedDataParallel computed (make_ddp_fixtures.py).
// Two ranks; weights and inputs are the same sines there and here.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "tests/testing/catch.h"
#include "tests/worker/communicator_cluster.h"
#include "tests/worker/torch/thread_communicator.h"
#include "worker/torch/distributed_data_parallel.h"

namespace ddprun::worker {
namespace {

using torch::nn::Linear;
using torch::nn::ReLU;
using torch::nn::Sequential;
using torch::nn::Tanh;

// By case, rank and name.
using Tensors = std::map<std::string, at::Tensor>;

Tensors python_tensors() {
  std::ifstream file(DDPRUN_DDP_FIXTURES);
  Tensors tensors;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string name, rank, tensor;
    fields >> name >> rank >> tensor;
    std::vector<float> values;
    for (float value = 0; fields >> value;) values.push_back(value);
    tensors[name + " " + rank + " " + tensor] = torch::tensor(values);
  }
  return tensors;
}

template <class Holder>
Holder filled(Holder module) {
  const at::NoGradGuard no_grad;
  int k = 0;
  for (at::Tensor& parameter : module->parameters()) {
    const at::Tensor values = torch::arange(parameter.numel(), torch::kFloat32);
    parameter.copy_((values * 0.7 + k++).sin().mul(0.5).view_as(parameter));
  }
  return module;
}

at::Tensor batch(int rank, int step) {
  const at::Tensor values = torch::arange(16, torch::kFloat32);
  return (values * 0.31 + (step * 1.7 + rank * 0.9)).sin().view({4, 4});
}

struct ScaleNetImpl : torch::nn::Module {
  explicit ScaleNetImpl(bool by_input) : by_input_(by_input) {
    linear = register_module("linear", Linear(4, 2));
    scale = register_buffer("scale", torch::ones({1}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor used = scale.clone();
    scale.add_(by_input_ ? 0.1 * x.abs().mean() : torch::full({}, 0.25));
    return linear(x * used).pow(2).mean();
  }
  Linear linear{nullptr};
  at::Tensor scale;

 private:
  bool by_input_;
};
TORCH_MODULE(ScaleNet);

struct NormNetImpl : torch::nn::Module {
  NormNetImpl() {
    first = register_module("first", Linear(4, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    last = register_module("last", Linear(6, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return last(norm(first(x)).relu()).pow(2).mean(); }
  Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(NormNet);

struct WordNetImpl : torch::nn::Module {
  WordNetImpl() {
    const auto options = torch::nn::EmbeddingOptions(9, 4).sparse(true);
    words = register_module("words", torch::nn::Embedding(options));
    last = register_module("last", Linear(4, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return last(words(x).sum(1).tanh()).pow(2).mean(); }
  torch::nn::Embedding words{nullptr};
  Linear last{nullptr};
};
TORCH_MODULE(WordNet);

at::Tensor flat(const torch::nn::Module& module) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : module.parameters())
    all.push_back(parameter.detach().flatten());
  return at::cat(all);
}

template <class Ddp>
void descend(Ddp& ddp) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : ddp.parameters()) parameter.sub_(0.1 * parameter.grad());
  ddp.zero_grad();
}

Tensors gan(Communicator& communicator) {
  const int rank = communicator.rank();
  Sequential maker = filled(Sequential(Linear(4, 4), Tanh()));
  Sequential critic = filled(Sequential(Linear(4, 6), ReLU(), Linear(6, 1)));
  DistributedDataParallel generator(maker, communicator);
  DistributedDataParallel judge(critic, communicator);
  for (int step = 0; step < 4; ++step) {
    const at::Tensor made = generator.forward(batch(rank, step + 10));
    ((judge.forward(batch(rank, step)) - 1).pow(2).mean() +
     judge.forward(made.detach()).pow(2).mean())
        .backward();
    descend(judge);
    (judge.forward(made) - 1).pow(2).mean().backward();
    descend(generator);
    judge.zero_grad();
  }
  return {{"generator", flat(*maker)}, {"judge", flat(*critic)}};
}

Tensors siamese(Communicator& communicator) {
  const int rank = communicator.rank();
  Linear one = filled(Linear(4, 3)), other = filled(Linear(4, 3));
  DistributedDataParallel left(one, communicator), right(other, communicator);
  for (int step = 0; step < 4; ++step) {
    (left.forward(batch(rank, step)) * right.forward(batch(rank, step + 20))).mean().backward();
    descend(left);
    descend(right);
  }
  return {{"left", flat(*one)}, {"right", flat(*other)}};
}

Tensors frozen_norm(Communicator& communicator) {
  NormNet net = filled(NormNet());
  DistributedDataParallel ddp(net, communicator);
  for (int step = 0; step < 6; ++step) {
    if (step == 3) net->norm->eval();
    ddp.forward(batch(communicator.rank(), step)).backward();
    descend(ddp);
  }
  return {{"weights", flat(*net)}, {"mean", net->norm->running_mean}};
}

Tensors uneven(Communicator& communicator, int longer) {
  ScaleNet net = filled(ScaleNet(false));
  DistributedDataParallel ddp(net, communicator);
  for (int step = 0; step < 5; ++step) {
    if (communicator.rank() == longer || step < 3) {
      ddp.forward(batch(communicator.rank(), step)).backward();
    } else {
      ddp.reduce_without_backward();
    }
    descend(ddp);
  }
  ddp.synchronize_buffers();  // As Join does at its end.
  return {{"weights", flat(*net)}, {"scale", net->scale}};
}

Tensors accumulated(Communicator& communicator) {
  ScaleNet net = filled(ScaleNet(true));
  DistributedDataParallel ddp(net, communicator);
  for (int step = 0; step < 9; ++step) {
    if (step % 3 == 2) {
      ddp.forward(batch(communicator.rank(), step)).backward();
      descend(ddp);
    } else {
      const auto local = ddp.no_sync();
      ddp.forward(batch(communicator.rank(), step)).backward();
    }
  }
  return {{"weights", flat(*net)}, {"scale", net->scale}};
}

Tensors evaluated(Communicator& communicator) {
  NormNet net = filled(NormNet());
  DistributedDataParallel ddp(net, communicator);
  std::vector<float> seen;
  const auto look = [&](int step) {
    ddp.eval();
    const at::NoGradGuard no_grad;
    seen.push_back(ddp.forward(batch(0, step)).item<float>());
    ddp.train();
  };
  for (int step = 0; step < 12; ++step) {
    if (step % 4 == 2) {
      const auto local = ddp.no_sync();
      ddp.forward(batch(communicator.rank(), step)).backward();
    } else {
      ddp.forward(batch(communicator.rank(), step)).backward();
      descend(ddp);
    }
    if (step == 3 || step == 6 || step == 7 || step == 10) look(step);
    if (step == 6) look(step + 1);
  }
  return {{"seen", torch::tensor(seen)}, {"weights", flat(*net)}};
}

Tensors sparse(Communicator& communicator) {
  const int rank = communicator.rank();
  WordNet net = filled(WordNet());
  DistributedDataParallel ddp(net, communicator);
  for (int step = 0; step < 6; ++step) {
    const at::Tensor places = torch::arange(6, torch::kLong);
    const at::Tensor words = (places * (rank + 2) + step).remainder(9).view({3, 2});
    if (step % 3 == 1) {
      const auto local = ddp.no_sync();
      ddp.forward(words).backward();
    } else {
      ddp.forward(words).backward();
      descend(ddp);
    }
  }
  return {{"words", net->words->weight.detach().flatten()}, {"last", flat(*net->last)}};
}

using Train = std::function<Tensors(Communicator&)>;

// What differs by more than `tolerance` from Python's, in words; "" if nothing does.
std::string differences(const std::string& name, const Train& train, Wiring wiring) {
  constexpr double tolerance = 4e-6;
  const Tensors python = python_tensors();
  std::mutex mutex;
  std::string text;
  int compared = 0;
  const auto errors = spawn({2, wiring}, [&](Communicator& communicator) {
    at::set_num_threads(1);
    const Tensors mine = train(communicator);
    const std::lock_guard lock(mutex);
    for (const auto& [tensor, values] : mine) {
      const std::string key = name + " " + std::to_string(communicator.rank()) + " " + tensor;
      ++compared;
      const auto theirs = python.find(key);
      if (theirs == python.end()) {
        text += key + " is no fixture\n";
      } else if (!at::allclose(values, theirs->second, tolerance, tolerance)) {
        text += c10::str(key, ":\n", values, "\nand in Python\n", theirs->second, "\n");
      }
    }
  });
  for (const std::string& error : errors) text += error;
  return compared == 4 ? text : text + " not all ranks came to the end";
}

void check_against_python(const std::string& name, const Train& train) {
  for (const Wiring wiring : {Wiring::SharedMemory, Wiring::Tcp}) {
    INFO(name << " over " << name_of(wiring));
    CHECK(differences(name, train, wiring) == "");
  }
}

TEST_CASE("two modules in one backward train as in Python", "[worker][ddp][python][several]") {
  check_against_python("gan", gan);
  check_against_python("siamese", siamese);
}

TEST_CASE("a BatchNorm in evaluation mode within a training module trains as in Python",
          "[worker][ddp][python][buffers]") {
  check_against_python("frozen_norm", frozen_norm);
}

TEST_CASE("uneven batches of a module with a buffer of its own train as in Python",
          "[worker][ddp][python][buffers]") {
  check_against_python("uneven_0", [](Communicator& c) { return uneven(c, 0); });
  check_against_python("uneven_1", [](Communicator& c) { return uneven(c, 1); });
}

TEST_CASE("buffers under no_sync are sent when Python sends them",
          "[worker][ddp][python][buffers]") {
  check_against_python("accumulated", accumulated);
  check_against_python("evaluated", evaluated);
}

TEST_CASE("sparse gradients train as in Python", "[worker][ddp][python][sparse]") {
  check_against_python("sparse", sparse);
}

}  // namespace
}  // namespace ddprun::worker
