// DistributedDataParallel over the CPU communicator itself: shared memory, TCP, and both.
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <torch/nn/modules/activation.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <mutex>
#include <stdexcept>

#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/worker/communicator_cluster.h"
#include "tests/worker/torch/thread_communicator.h"
#include "worker/torch/distributed_data_parallel.h"

namespace ddprun::worker {
namespace {

using torch::nn::Linear;
using torch::nn::ReLU;
using torch::nn::Sequential;

Sequential small_net() {
  return seeded(5,
                [] { return Sequential(Linear(16, 300), ReLU(), Linear(300, 40), Linear(40, 3)); });
}

at::Tensor batch(int rank) {
  return seeded(static_cast<std::uint64_t>(rank), [] { return torch::randn({4, 16}); });
}

// All weights after five steps, as one tensor.
at::Tensor train(Communicator& communicator) {
  at::set_num_threads(1);
  Sequential net = small_net();
  DataParallelOptions options;
  options.buckets = {1024, 4096, 1024};
  DistributedDataParallel ddp(net, communicator, options);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < 5; ++step) {
    ddp.zero_grad();
    ddp.forward(batch(10 * step + communicator.rank())).pow(2).mean().backward();
    optimizer.step();
  }
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : net->parameters())
    flat.push_back(parameter.detach().flatten());
  return at::cat(flat);
}

TEST_CASE("weights are the same on every rank and over every wiring, bit for bit",
          "[worker][ddp][communicator]") {
  constexpr int world = 3;
  std::vector<at::Tensor> weights;
  for (const Wiring wiring : {Wiring::SharedMemory, Wiring::Tcp, Wiring::TwoHosts}) {
    std::mutex mutex;
    const auto errors = spawn({world, wiring}, [&](Communicator& communicator) {
      const at::Tensor mine = train(communicator);
      const std::lock_guard lock(mutex);
      weights.push_back(mine);
    });
    for (const std::string& error : errors) CHECK(error == "");
  }

  REQUIRE(weights.size() == 3u * world);
  for (const at::Tensor& other : weights) CHECK(at::equal(other, weights[0]));
}

TEST_CASE("a rank that leaves in the middle of training ends its peer's backward",
          "[worker][ddp][communicator]") {
  for (const Wiring wiring : {Wiring::SharedMemory, Wiring::Tcp}) {
    const auto errors = spawn({2, wiring}, [](Communicator& communicator) {
      at::set_num_threads(1);
      Sequential net = small_net();
      DistributedDataParallel ddp(net, communicator);
      for (int step = 0; step < 100; ++step) {
        if (communicator.rank() == 1 && step == 3) return;
        ddp.zero_grad();
        ddp.forward(batch(communicator.rank())).sum().backward();
      }
    });

    CHECK(errors[0] != "");
    CHECK(errors[1] == "");
  }
}

// The first evaluation after training synchronizes the running statistics, while a bucket of a
// backward that did not end may still be under way.
TEST_CASE("an evaluation waits for the buckets of a backward that a hook ended",
          "[worker][ddp][communicator]") {
  for (const bool rank_0_fails : {true, false}) {
    int late[2];  // From one process to the other.
    REQUIRE(::pipe2(late, O_CLOEXEC) == 0);
    const auto errors = spawn({2, Wiring::SharedMemory}, [&](Communicator& communicator) {
      at::set_num_threads(1);
      Sequential net = seeded(5, [] {
        return Sequential(Linear(16, 40), torch::nn::BatchNorm1d(40), ReLU(), Linear(40, 3));
      });
      DataParallelOptions options;
      options.buckets = {64, 256, 64};
      DistributedDataParallel ddp(net, communicator, options);
      if (communicator.rank() == 1 || rank_0_fails) {
        net->parameters().front().register_hook(
            [](const at::Tensor&) { throw std::domain_error("not a number"); });
      }
      const at::Tensor loss = ddp.forward(batch(communicator.rank())).sum();
      pollfd other{late[0], POLLIN, 0};
      const auto limit = static_cast<int>(testing::patience(std::chrono::seconds(10)).count());
      if (communicator.rank() == 0) RANK_CHECK(::poll(&other, 1, limit) == 1);
      try {
        loss.backward();
      } catch (const std::domain_error&) {
      }
      if (communicator.rank() == 1) RANK_CHECK(::write(late[1], "e", 1) == 1);
      const torch::NoGradGuard off;
      ddp.eval();
      RANK_CHECK(ddp.forward(batch(7)).isfinite().all().item<bool>());
    });
    for (const int end : late) ::close(end);
    for (const std::string& error : errors) {
      INFO(error);
      if (rank_0_fails) CHECK(error == "");
      if (!rank_0_fails) CHECK(error.find("make the same calls in the same") != std::string::npos);
    }
  }
}

TEST_CASE("16.5: a backward whose step is lost is given up at the next gradient",
          "[worker][ddp][communicator]") {
  const auto errors = spawn({2, Wiring::SharedMemory}, [](Communicator& communicator) {
    at::set_num_threads(1);
    Sequential net = small_net();
    DistributedDataParallel ddp(net, communicator);
    int gradients_of_first_layer = 0;
    net->parameters().front().register_hook([&](at::Tensor) { gradients_of_first_layer += 1; });
    at::Tensor out = ddp.forward(batch(communicator.rank()));
    communicator.barrier();  // The other's abort would end a forward as well.
    // In the middle of backward, as the thread that listens to the launcher does.
    out.register_hook([&](at::Tensor) { communicator.abort("the attempt is over"); });

    const std::string what = message_of<CommunicatorError>([&] {
      try {
        out.sum().backward();
      } catch (...) {
        return std::current_exception();
      }
      return std::exception_ptr();
    }());

    // As calls say it: else the launcher would take it for an error of this rank's own.
    RANK_CHECK(what == "a step failed on rank " + std::to_string(communicator.rank()) +
                           ": the attempt is over");
    RANK_CHECK(gradients_of_first_layer == 0);
    RANK_CHECK(communicator.aborted() == "the attempt is over");
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("a forked child that destroys its copies leaves training to its parent",
          "[worker][ddp][communicator]") {
  at::set_num_threads(1);
  auto communicator = make_cpu_communicator(WorkerEnv{});
  Sequential net = small_net();
  DataParallelOptions options;
  options.reduce_world_of_one = true;
  auto ddp = std::make_unique<DistributedDataParallel<torch::nn::SequentialImpl>>(
      net, *communicator, options);
  ddp->forward(batch(0)).sum().backward();
  const pid_t child = ::fork();
  if (child == 0) {
    // Or it would wait for threads that only its parent has.
    ::alarm(static_cast<unsigned>(testing::patience(std::chrono::seconds(20)).count() / 1000));
    ddp.reset();
    communicator.reset();
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  ddp->zero_grad();
  ddp->forward(batch(0)).sum().backward();
  CHECK(net->parameters().front().grad().defined());
}

TEST_CASE("a wrapper that a child forked in backward destroys does not wait for its parent's lock",
          "[worker][ddp][communicator]") {
  at::set_num_threads(1);
  auto communicator = make_cpu_communicator(WorkerEnv{});
  Sequential net = small_net();
  std::unique_ptr<DistributedDataParallel<torch::nn::SequentialImpl>> ddp;
  int status = -1;
  DataParallelOptions options;
  options.reduce_world_of_one = true;
  // Called while the wrappers' turns are locked.
  options.complete_gradient = [&](std::size_t, const at::Tensor&) {
    if (status == 0) return;
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(static_cast<unsigned>(testing::patience(std::chrono::seconds(20)).count() / 1000));
      ddp.reset();
      ::_exit(0);
    }
    ::waitpid(child, &status, 0);
  };
  ddp = std::make_unique<DistributedDataParallel<torch::nn::SequentialImpl>>(net, *communicator,
                                                                             options);
  ddp->forward(batch(0)).sum().backward();
  CHECK(status == 0);
}

}  // namespace
}  // namespace ddprun::worker
