// What must fit before a run goes on with momentum or averages that another recipe made.
#include "trainer/checkpoint/recipe_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "trainer/checkpoint/checkpoint.h"
#include "worker/parse_number.h"

namespace ddprun::trainer {
namespace {

const char* name_of(OptimizerKind kind) { return kind == OptimizerKind::Lars ? "lars" : "sgd"; }

void check_average(const ModelAverage& average, const PartState& state) {
  if (state.tensors.empty()) return;
  const auto own = average.tensors();
  for (const auto& item : own) {
    const auto& [name, tensor] = item;
    const auto found = std::find_if(state.tensors.begin(), state.tensors.end(),
                                    [&](const auto& entry) { return entry.first == item.first; });
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

// Of a checkpoint without it: the initial one.
LossScalerState scaler_state_of(const PartState& part) {
  LossScalerState state = LossScaler().state();
  const auto read = [&](const char* name, auto& value) {
    const auto found = part.values.find(name);
    if (found == part.values.end()) return;
    using Value = std::remove_reference_t<decltype(value)>;
    value = worker::parse_number<Value>(found->second).value_or(-1);  // Which no scaler accepts.
  };
  read("scale", state.scale);
  read("growth_steps", state.growth_steps);
  return state;
}

[[noreturn]] void refuse_scaler_state(const PartState& state) {
  std::string text;
  for (const auto& [name, value] : state.values) text += fmt::format(" {} '{}'", name, value);
  throw std::invalid_argument("the loss scaler cannot have this state:" + text);
}

}  // namespace

CheckpointPart average_part(ModelAverage& average) {
  return {.name = average_part_name,
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

CheckpointPart shards_part(int shards, bool anyway) {
  return {.name = "shards",
          .save =
              [shards] {
                return PartState{{}, {{"count", std::to_string(shards)}}};
              },
          .check =
              [shards, anyway](const PartState& state) {
                const auto found = state.values.find("count");
                if (anyway || found == state.values.end()) return;
                if (found->second == std::to_string(shards)) return;
                throw ForeignCheckpointError(fmt::format(
                    "the checkpoint's steps have --shards {} and not {}: give the same number, "
                    "whatever the number of workers, or --resume-anyway to go on all the same",
                    found->second, shards));
              },
          .restore = [](const PartState&) {}};
}

CheckpointPart loss_scaler_part(LossScaler& scaler, std::function<void()> catch_up,
                                std::function<void()> restored) {
  return {.name = "loss_scaler",
          .save =
              [&scaler, catch_up = std::move(catch_up)] {
                if (catch_up) catch_up();
                return PartState{
                    {},
                    {{"scale", fmt::format("{}", scaler.state().scale)},
                     {"growth_steps", fmt::format("{}", scaler.state().growth_steps)}}};
              },
          .check =
              [](const PartState& state) {
                if (!LossScaler().restore(scaler_state_of(state))) refuse_scaler_state(state);
              },
          .restore =
              [&scaler, restored = std::move(restored)](const PartState& state) {
                if (!scaler.restore(scaler_state_of(state))) refuse_scaler_state(state);
                if (restored) restored();
              }};
}

}  // namespace ddprun::trainer
