// What must fit before a run goes on with momentum or averages that another recipe made.
#include "trainer/recipe_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "trainer/checkpoint/checkpoint.h"

namespace ddprun::trainer {
namespace {

const char* name_of(OptimizerKind kind) { return kind == OptimizerKind::Lars ? "lars" : "sgd"; }

void check_average(const ModelAverage& average, const PartState& state) {
  if (state.tensors.empty()) return;
  const auto own = average.tensors();
  for (const auto& [name, tensor] : own) {
    const auto found = std::find_if(state.tensors.begin(), state.tensors.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    if (found == state.tensors.end()) {
      throw std::invalid_argument(fmt::format("the averaged weights lack '{}'", name));
    }
    if (found->second.sizes() != tensor.sizes()) {
      throw std::invalid_argument(
          fmt::format("the average of '{}' has not the shape of the weight", name));
    }
  }
  if (own.size() != state.tensors.size()) {
    throw std::invalid_argument("the averaged weights are not those of this model");
  }
}

void load_average(ModelAverage& average, const PartState& state) {
  const torch::NoGradGuard no_grad;
  // None in a checkpoint of a run without --ema: the average then begins with the next step.
  average.set_started(!state.tensors.empty());
  if (state.tensors.empty()) return;
  for (auto& [name, tensor] : average.tensors()) {
    for (const auto& [key, value] : state.tensors) {
      if (key == name) torch::Tensor(tensor).copy_(value);
    }
  }
}

}  // namespace

CheckpointPart average_part(ModelAverage& average) {
  return {.name = "ema",
          .save =
              [&average] {
                return average.started() ? PartState{average.tensors(), {}} : PartState{};
              },
          .check = [&average](const PartState& state) { check_average(average, state); },
          .restore = [&average](const PartState& state) { load_average(average, state); }};
}

CheckpointPart optimizer_kind_part(OptimizerKind kind) {
  return {.name = "recipe",
          .save =
              [kind] {
                return PartState{{}, {{"optimizer", name_of(kind)}}};
              },
          .check =
              [kind](const PartState& state) {
                const auto found = state.values.find("optimizer");
                // Checkpoints from before there was a choice do not say it.
                const std::string saved = found == state.values.end() ? "sgd" : found->second;
                if (saved == name_of(kind)) return;
                throw ForeignCheckpointError(fmt::format(
                    "the checkpoint's momentum is that of --optimizer {}, with which --optimizer "
                    "{} cannot go on: give the same one, or another --checkpoint-dir and the "
                    "weights alone with --weights",
                    saved, name_of(kind)));
              },
          .restore = [](const PartState&) {}};
}

}  // namespace ddprun::trainer
