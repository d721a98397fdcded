// Names in and out of the file, and how a part read by rank 0 reaches ranks that have no file.
#include "trainer/checkpoint/checkpoint_part.h"

#include <nlohmann/json.hpp>

#include "trainer/optimizer/sgd.h"
#include "worker/torch/tensor_collectives.h"

namespace ddprun::trainer {
namespace {

using Json = nlohmann::json;

constexpr std::string_view momentum_prefix = "momentum/";

// The tensors of the state under the names that the optimizer gave them.
NamedTensors momentum_of(const PartState& state) {
  NamedTensors buffers;
  for (const auto& [key, tensor] : state.tensors) {
    if (!key.starts_with(momentum_prefix)) {
      throw std::invalid_argument("the optimizer has no state named '" + key + "'");
    }
    buffers.emplace_back(key.substr(momentum_prefix.size()), tensor);
  }
  return buffers;
}

// What a rank must know before it can receive the tensors.
Json describe(const PartState& state) {
  Json description{{"values", state.values}, {"tensors", Json::array()}};
  for (const auto& [key, tensor] : state.tensors) {
    description["tensors"].push_back(
        {key, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
  }
  return description;
}

PartState make_room(const Json& description, torch::Device device) {
  PartState state{{}, description["values"].get<std::map<std::string, std::string>>()};
  for (const Json& entry : description["tensors"]) {
    const auto type = static_cast<torch::ScalarType>(entry[1].get<int>());
    state.tensors.emplace_back(entry[0].get<std::string>(),
                               torch::empty(entry[2].get<std::vector<std::int64_t>>(),
                                            torch::TensorOptions(type).device(device)));
  }
  return state;
}

}  // namespace

CheckpointPart optimizer_part(Sgd& optimizer) {
  return {.name = "optimizer",
          .save =
              [&optimizer] {
                PartState state;
                for (const auto& [name, buffer] : optimizer.momentum_buffers()) {
                  state.tensors.emplace_back(std::string(momentum_prefix) + name, buffer);
                }
                return state;
              },
          .check =
              [&optimizer](const PartState& state) {
                optimizer.check_momentum_buffers(momentum_of(state));
              },
          .restore =
              [&optimizer](const PartState& state) {
                optimizer.load_momentum_buffers(momentum_of(state));
              }};
}

void add_part(const std::string& name, const PartState& state, Safetensors& file) {
  for (const auto& [key, tensor] : state.tensors)
    file.tensors.emplace_back(name + "/" + key, tensor);
  for (const auto& [key, value] : state.values) file.metadata[name + "/" + key] = value;
}

PartState take_part(const std::string& name, Safetensors& file) {
  PartState state;
  const std::string prefix = name + "/";
  std::erase_if(file.tensors, [&](const auto& entry) {
    const bool mine = entry.first.starts_with(prefix);
    if (mine) state.tensors.emplace_back(entry.first.substr(prefix.size()), entry.second);
    return mine;
  });
  std::erase_if(file.metadata, [&](const auto& entry) {
    const bool mine = entry.first.starts_with(prefix);
    if (mine) state.values[entry.first.substr(prefix.size())] = entry.second;
    return mine;
  });
  return state;
}

std::vector<PartState> share_states(const CheckpointParts& parts,
                                    worker::Communicator& communicator, torch::Device device,
                                    int root) {
  const bool gives = communicator.rank() == root;
  std::vector<PartState> states;
  Json descriptions = Json::array();
  if (gives) {
    for (const CheckpointPart& part : parts) {
      states.push_back(part.save());
      descriptions.push_back(describe(states.back()));
    }
  }
  const std::string text =
      worker::broadcast_text(communicator, gives ? descriptions.dump() : "", device, root);
  if (!gives) {
    for (const Json& description : Json::parse(text)) {
      states.push_back(make_room(description, device));
    }
  }
  std::vector<torch::Tensor> tensors;
  for (const PartState& state : states) {
    for (const auto& [key, tensor] : state.tensors) {
      tensors.push_back(tensor.detach().to(device).contiguous());
    }
  }
  worker::TensorBroadcast(communicator).run(tensors, root);
  return states;
}

void restore_parts(const CheckpointParts& parts, const std::vector<PartState>& states) {
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i].restore(states[i]);
}

void share_parts(const CheckpointParts& parts, worker::Communicator& communicator,
                 torch::Device device, int root) {
  const std::vector<PartState> states = share_states(parts, communicator, device, root);
  if (communicator.rank() != root) restore_parts(parts, states);
}

}  // namespace ddprun::trainer
