// Matrices under the names of their parameters: a later run may count them otherwise.
#include "trainer/checkpoint/power_sgd_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "worker/parse_number.h"

namespace ddprun::trainer {
namespace {

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
  const auto steps = worker::parse_number<std::int64_t>(text);
  if (!steps || *steps < 0) {
    throw std::invalid_argument(fmt::format("PowerSGD cannot have done '{}' steps", text));
  }
  return *steps;
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

}  // namespace ddprun::trainer
