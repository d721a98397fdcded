// Data-parallel training in one file: a small network learns to tell horizontal stripes from
// vertical ones. Each worker reads its share of the images; the gradients are averaged.
#include <torch/torch.h>

#include <iostream>
#include <numeric>

#include "worker/meeting.h"
#include "worker/torch/distributed_data_parallel.h"
#include "worker/torch/distributed_sampler.h"

using namespace ddprun::worker;

// Image i shows stripes across or along, under noise; the label says which.
std::pair<torch::Tensor, torch::Tensor> make_images(std::int64_t count) {
  torch::manual_seed(1);  // The same images on every worker.
  const auto labels = torch::randint(2, {count}, torch::kInt64);
  const auto stripes = (torch::arange(8) % 2).to(torch::kFloat32).view({1, 8, 1}).expand({1, 8, 8});
  const auto along = labels.view({-1, 1, 1}).to(torch::kFloat32);
  const auto images = along * stripes + (1 - along) * stripes.transpose(1, 2);
  return {(images + 0.5 * torch::randn({count, 8, 8})).unsqueeze(1), labels};
}

int main() try {
  torch::set_num_threads(1);
  const WorkerEnv env = meet_workers(read_worker_env());
  const auto communicator = make_cpu_communicator(env);

  torch::nn::Sequential net(torch::nn::Conv2d(1, 8, 3), torch::nn::ReLU(), torch::nn::Flatten(),
                            torch::nn::Linear(8 * 6 * 6, 2));
  DistributedDataParallel ddp(net, *communicator);  // All start with rank 0's weights.
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1));

  const auto [images, labels] = make_images(512);
  const DistributedSampler sampler(
      {.length = images.size(0), .replicas = env.world_size, .rank = env.rank});
  for (int epoch = 0; epoch < 3; ++epoch) {
    const auto mine = torch::tensor(sampler.indices(epoch));  // In another order each epoch.
    for (const auto& batch : mine.split(32)) {
      ddp.zero_grad();
      const auto output = ddp.forward(images.index_select(0, batch));
      const auto loss = torch::nll_loss(output.log_softmax(1), labels.index_select(0, batch));
      loss.backward();  // When it returns, the gradients are those of all workers.
      optimizer.step();
    }
    const auto right = ddp.forward(images).argmax(1).eq(labels).to(torch::kFloat32).mean();
    if (env.rank == 0) {
      std::cout << "epoch " << epoch << ": " << 100 * right.item<float>() << " % right, with "
                << env.world_size << " workers" << std::endl;
    }
  }
  communicator->barrier();
  return 0;
} catch (const std::exception& error) {
  std::cerr << "train_stripes: " << error.what() << std::endl;
  return 1;
}
