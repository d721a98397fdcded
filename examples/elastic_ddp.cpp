// DistributedDataParallel that outlives the loss of a worker or a node: those that are left keep
// their process, network and optimizer; a new worker takes both over from one of them, and the step
// that was interrupted is done again.
//
//   ddprun --standalone --nproc-per-node 1:2 --max-restarts 3 build/bin/elastic_ddp
//   kill -9 PID        # of a worker, as it says
//
// A small network learns to tell horizontal stripes from vertical ones. A step is always the same
// images, divided among however many workers there are.
#include <torch/torch.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "worker/declare_failure.h"
#include "worker/error_file.h"
#include "worker/membership.h"
#include "worker/torch/distributed_data_parallel.h"
#include "worker/torch/tensor_collectives.h"
#include "worker/wait_for_rank.h"

using namespace ddprun::worker;

namespace {

constexpr std::int64_t images_of_step = 32;

torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Conv2d(1, 8, 3), ReLU(), Flatten(), Linear(8 * 6 * 6, 2));
}

// What a worker must not lose.
struct State {
  torch::nn::Sequential net = make_net();
  torch::optim::Adam optimizer{net->parameters(), torch::optim::AdamOptions(1e-3)};
  std::int64_t step = -1;  // Steps that are done; -1: there is no state yet.
};

std::string to_bytes(const State& state) {
  torch::serialize::OutputArchive archive, net, optimizer;
  state.net->save(net);
  state.optimizer.save(optimizer);
  archive.write("net", net);
  archive.write("optimizer", optimizer);
  archive.write("step", c10::IValue(state.step));
  std::ostringstream bytes;
  archive.save_to(bytes);
  return bytes.str();
}

void from_bytes(const std::string& bytes, State& state) {
  torch::serialize::InputArchive archive, net, optimizer;
  std::istringstream stream(bytes);
  archive.load_from(stream);
  archive.read("net", net);
  archive.read("optimizer", optimizer);
  state.net->load(net);
  state.optimizer.load(optimizer);
  c10::IValue step;
  archive.read("step", step);
  state.step = step.toInt();
}

// All go on from the state of the furthest; where nobody has any, from rank 0's initial weights,
// which DistributedDataParallel gives to all. A peer may be lost here, too: so the state is changed
// only when all of it is there.
void agree(Communicator& communicator, State& state) {
  const StateLead lead = find_lead(communicator, {state.step});
  if (!lead.any) {
    state.step = 0;
  } else if (!lead.complete) {
    const bool leads = communicator.rank() == lead.root;
    const std::string bytes = broadcast_text(communicator, leads ? to_bytes(state) : std::string(),
                                             torch::kCPU, lead.root);
    if (!lead.leads({state.step})) from_bytes(bytes, state);
  }
}

// The same images on every worker: image i shows stripes across or along, under noise; the label
// says which.
std::pair<torch::Tensor, torch::Tensor> images_and_labels(std::int64_t step) {
  torch::manual_seed(static_cast<std::uint64_t>(step));
  const auto labels = torch::randint(2, {images_of_step}, torch::kInt64);
  const auto stripes = (torch::arange(8) % 2).to(torch::kFloat32).view({1, 8, 1}).expand({1, 8, 8});
  const auto along = labels.view({-1, 1, 1}).to(torch::kFloat32);
  const auto images = along * stripes + (1 - along) * stripes.transpose(1, 2);
  return {(images + 0.5 * torch::randn({images_of_step, 8, 8})).unsqueeze(1), labels};
}

// The wrapper is of this attempt, as the communicator is; the network and its optimizer are not.
void train(Communicator& communicator, State& state, std::int64_t steps) {
  DistributedDataParallel ddp(state.net, communicator);
  while (state.step < steps) {
    const auto [images, labels] = images_and_labels(state.step);
    const auto world = communicator.world_size(), rank = communicator.rank();
    const auto mine = images.tensor_split(world)[static_cast<std::size_t>(rank)];
    const auto right = labels.tensor_split(world)[static_cast<std::size_t>(rank)];
    ddp.zero_grad();  // Before the step, since one that was interrupted has left gradients.
    // Of all images of the step, also where they do not divide by the number of workers.
    const auto loss =
        torch::nll_loss(ddp.forward(mine).log_softmax(1), right, {}, at::Reduction::Sum) *
        (1.0 * world / images_of_step);
    loss.backward();         // May throw, as each call of the communicator may.
    state.optimizer.step();  // From here on the step is done, and no call is between the two.
    state.step += 1;
    if (rank == 0 && (state.step % 1000 == 0 || state.step == steps)) {
      std::cout << "step " << state.step << ": loss " << loss.item<double>() << std::endl;
    }
  }
  communicator.barrier();  // Nobody leaves while another still needs the last gradients.
}

void run(Membership& members, State& state, std::int64_t steps) {
  for (;;) {
    const WorkerEnv env = read_worker_env();
    std::unique_ptr<Communicator> communicator;
    try {
      communicator = make_cpu_communicator(env, members.options());
      const auto guard = members.guard(*communicator);
      agree(*communicator, state);
      std::cout << "rank " + std::to_string(env.rank) + " of " + std::to_string(env.world_size) +
                       " is pid " + std::to_string(::getpid()) + " at step " +
                       std::to_string(state.step) + "\n"
                << std::flush;
      return train(*communicator, state, steps);
    } catch (const CommunicatorError& error) {
      // A peer is gone: not this worker's failure, if the launcher says so, too.
      if (members.next_rank()) continue;
      if (members.job_is_over()) std::exit(1);
      declare_failure(communicator.get(), error.what());
      throw;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t steps = argc > 1 ? std::atoll(argv[1]) : 20'000;
  torch::set_num_threads(1);
  torch::manual_seed(1);
  State state;      // LibTorch is loaded, and the network made, before there is a rank.
  wait_for_rank();  // ddprun --spares
  install_error_handlers(read_worker_env());
  Membership members;
  run(members, state, steps);
}
