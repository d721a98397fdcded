// From options to a hook of the wrapped model, and in words.
#include "trainer/gradient_travel.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <string>
#include <vector>

#include "trainer/report/memory_plan.h"
#include "trainer/report/reporter.h"
#include "worker/torch/hooks/narrow_gradients.h"

namespace ddprun::trainer {
namespace {

worker::PowerSgdOptions power_sgd_options(const TrainOptions& options) {
  worker::PowerSgdOptions power{.rank = *options.power_sgd, .seed = options.seed};
  power.start_step = options.power_sgd_start.value_or(power.start_step);
  return power;
}

constexpr std::string_view error_prefix = "error/";
constexpr std::string_view q_prefix = "q/";

struct Learning {
  std::string name;
  std::vector<std::int64_t> shape;
};

// As the hook counts them.
std::vector<Learning> learning_parameters(const torch::nn::Module& model) {
  std::vector<Learning> found;
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad()) found.push_back({item.key(), item.value().sizes().vec()});
  }
  return found;
}

std::int64_t steps_in(const PartState& state) {
  const auto found = state.values.find("steps");
  if (found == state.values.end()) return 0;
  const std::string& text = found->second;
  std::int64_t steps = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (error != std::errc() || end != text.data() + text.size() || steps < 0) {
    throw std::invalid_argument(fmt::format("PowerSGD cannot have done '{}' steps", text));
  }
  return steps;
}

// Throws std::invalid_argument for what is not of these parameters.
worker::PowerSgdMemory memory_in(const PartState& state, const std::vector<Learning>& parameters) {
  worker::PowerSgdMemory memory{.steps = steps_in(state), .matrices = {}};
  const auto tensor = [&](const std::string& name) {
    const auto found = std::find_if(state.tensors.begin(), state.tensors.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    return found == state.tensors.end() ? torch::Tensor() : found->second;
  };
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, shape] = parameters[i];
    const torch::Tensor error = tensor(std::string(error_prefix) + name);
    const torch::Tensor q = tensor(std::string(q_prefix) + name);
    if (!error.defined() || !q.defined()) continue;
    if (error.sizes() != shape) {
      throw std::invalid_argument(
          fmt::format("what PowerSGD has left of '{}' has not the shape of the parameter", name));
    }
    memory.matrices.push_back({i, error, q});
  }
  if (2 * memory.matrices.size() != state.tensors.size()) {
    throw std::invalid_argument("what PowerSGD has left is not of this model's parameters");
  }
  return memory;
}

PartState state_of(const worker::PowerSgd& power, const std::vector<Learning>& parameters) {
  PartState state;
  if (!power.errors_are_shared()) return state;
  const worker::PowerSgdMemory memory = power.memory();
  state.values["steps"] = std::to_string(memory.steps);
  for (const auto& [parameter, error, q] : memory.matrices) {
    const std::string& name = parameters[parameter].name;
    state.tensors.emplace_back(std::string(error_prefix) + name, error);
    state.tensors.emplace_back(std::string(q_prefix) + name, q);
  }
  return state;
}

}  // namespace

std::shared_ptr<worker::PowerSgd> make_power_sgd(const TrainingJob& job) {
  if (!job.options.power_sgd || job.env.world_size == 1) return nullptr;
  return std::make_shared<worker::PowerSgd>(power_sgd_options(job.options));
}

std::shared_ptr<worker::CommunicationHook> make_communication_hook(const TrainingJob& job) {
  if (job.power_sgd) return job.power_sgd;
  const TrainOptions& options = job.options;
  if (options.gradient_type == GradientType::Parameters) return nullptr;
  const bool bfloat16 = options.gradient_type == GradientType::BFloat16;
  return std::make_shared<worker::NarrowGradients>(bfloat16 ? torch::kBFloat16 : torch::kHalf);
}

CheckpointPart power_sgd_part(worker::PowerSgd& power, const torch::nn::Module& model) {
  const std::vector<Learning> parameters = learning_parameters(model);
  return {
      .name = "power_sgd",
      .save = [&power, parameters] { return state_of(power, parameters); },
      .check = [parameters](const PartState& state) { memory_in(state, parameters); },
      .restore = [&power, parameters](
                     const PartState& state) { power.restore(memory_in(state, parameters)); },
  };
}

void share_errors(TrainingJob& job) {
  if (job.power_sgd) job.power_sgd->share_errors(job.communicator());
}

void tell_compression(TrainingJob& job) {
  if (!job.options.power_sgd || job.env.world_size == 1 || job.options.evaluate) return;
  if (job.state.step > 0 && job.power_sgd->memory().steps == 0) {
    job.reporter->warning(
        "--power-sgd begins anew: the checkpoint does not have what earlier steps left out");
  }
  const worker::PowerSgdOptions options = power_sgd_options(job.options);
  const auto [whole, travels] = worker::power_sgd_bytes(job.model->parameters(), options);
  if (travels == whole) {
    return job.reporter->warning(fmt::format(
        "--power-sgd {}: no gradient of this model gets smaller so, and all travel whole",
        options.rank));
  }
  const std::int64_t all = options.start_step - job.power_sgd->memory().steps;
  const double percent = 100 * static_cast<double>(travels) / static_cast<double>(whole);
  job.reporter->line(fmt::format("PowerSGD: {:.1f} % of {} of gradients travel in a step{}",
                                 percent, bytes_text(whole),
                                 all <= 0 ? "" : fmt::format(", all in the first {}", all)));
}

}  // namespace ddprun::trainer
