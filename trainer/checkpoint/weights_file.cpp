// Tells the formats apart by their first bytes, and makes foreign names and heads fit our models.
#include "trainer/checkpoint/weights_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/finite_tensor.h"
#include "trainer/checkpoint/recipe_state.h"
#include "trainer/formats/torch_file.h"
#include "trainer/formats/whole_file.h"

namespace ddprun::trainer {
namespace {

constexpr std::string_view zip_magic = "PK\x03\x04";
constexpr std::string_view old_torch_magic =
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr std::string_view part_separator = "/";
constexpr std::string_view averaged_count =
    "n_averaged";  // Of torch.optim.swa_utils.AveragedModel.

Safetensors read_any(const std::filesystem::path& path) {
  const std::string name = path.string();
  std::string bytes;
  try {
    bytes = read_whole_file(path);
  } catch (const FileError& error) {
    throw SafetensorsAccessError(error.what());
  }
  if (bytes.empty()) {
    throw CheckpointError(name + " is empty: copy or download it again, or give another file");
  }
  const std::string_view file = bytes;
  try {
    if (file.starts_with(zip_magic)) return {parse_torch_file(file), {}};
  } catch (const TorchFileError& error) {
    throw CheckpointError(
        fmt::format("{} cannot be read as a file of torch.save: {}", name, error.what()));
  }
  if (file.starts_with(old_torch_magic)) {
    throw CheckpointError(fmt::format(
        "{} is in the format that torch.save had before PyTorch 1.6. Write it anew with Python: "
        "torch.save(torch.load('{}', map_location='cpu'), 'new.pth')",
        name, name));
  }
  return parse_safetensors(file, name);
}

void check_values(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors) {
    if (all_finite(tensor)) continue;
    throw ForeignCheckpointError(fmt::format(
        "{} holds an infinity or a NaN in '{}': whatever wrote it had diverged. Give weights from "
        "before that",
        name, key));
  }
}

// "fc." of "fc.weight": the layer that was registered last.
std::string head_of(const torch::nn::Module& model) {
  const std::string last = model.named_parameters().keys().back();
  return last.substr(0, last.rfind('.') + 1);
}

const torch::Tensor* find(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors) {
    if (key == name) return &tensor;
  }
  return nullptr;
}

void check_classes(const NamedTensors& tensors, const std::string& name, const std::string& head,
                   const torch::nn::Module& model, WeightsUse use) {
  const torch::Tensor* found = find(tensors, head + "bias");
  const torch::Tensor expected = model.named_parameters()[head + "bias"];
  if (found == nullptr || found->dim() != 1 || found->size(0) == expected.size(0)) return;
  const std::string remedy =
      use == WeightsUse::Evaluation
          ? "give the data that it was trained on, or weights that were trained on this data"
          : fmt::format("add --new-head to load all but the last layer ('{}')",
                        head.substr(0, head.size() - 1));
  throw ForeignCheckpointError(fmt::format("{} is for {} classes, and the data has {}: {}", name,
                                           found->size(0), expected.size(0), remedy));
}

// Another program may call something else "class_names" or "mean".
bool is_ours(const Metadata& weights) {
  return weights.contains("dataset") && weights.contains("model");
}

}  // namespace

LoadedWeights load_weights_file(const std::filesystem::path& path, WeightsUse use,
                                torch::nn::Module& model) {
  Safetensors file = read_any(path);
  NamedTensors& tensors = file.tensors;
  const std::string average = std::string(average_part_name) + std::string(part_separator);
  const bool has_average = std::any_of(tensors.begin(), tensors.end(), [&](const auto& entry) {
    return entry.first.starts_with(average);
  });
  std::erase_if(tensors, [](const auto& entry) {  // Of a checkpoint of ours only the model.
    return entry.first.find(part_separator) != std::string::npos || entry.first == averaged_count;
  });
  for (auto& [key, tensor] : tensors) {
    key = unwrapped_name(std::move(key));
  }
  const std::string head = head_of(model);
  if (use == WeightsUse::TrainingNewHead) {
    std::erase_if(tensors, [&](const auto& entry) { return entry.first.starts_with(head); });
    for (const auto& entry : model.named_parameters()) {
      if (entry.key().starts_with(head)) tensors.emplace_back(entry.key(), entry.value().detach());
    }
  } else {
    check_classes(tensors, path.string(), head, model, use);
  }
  for (const auto& entry : model.named_buffers()) {
    // Weights from before PyTorch counted batches lack these; Python's load_state_dict() lets that
    // pass, too.
    if (entry.key().ends_with(".num_batches_tracked") && find(tensors, entry.key()) == nullptr) {
      tensors.emplace_back(entry.key(), entry.value());
    }
  }
  check_values(tensors, path.string());
  load_weights(tensors, path.string(), model);
  return {std::move(file.metadata), has_average};
}

Safetensors read_checkpoint_file(const std::filesystem::path& path) {
  std::string begin(old_torch_magic.size(), '\0');
  std::ifstream(path, std::ios::binary).read(begin.data(), std::ssize(begin));
  if (begin.starts_with(zip_magic) || begin == old_torch_magic) {
    throw CheckpointError(path.string() +
                          " is a file of torch.save: --weights takes the weights of one; a state "
                          "of training can be taken from a checkpoint of this program alone");
  }
  return read_safetensors(path);
}

std::string label_difference(const Metadata& weights, const RunIdentity& identity) {
  if (!is_ours(weights)) return "";
  const auto dataset = weights.find("dataset");
  const DataIdentity classes{.class_names = identity.data.class_names};
  const Metadata names = data_metadata(classes);
  if (!names.empty() && weights.contains(names.begin()->first)) {
    return data_difference(weights, classes);
  }
  if (dataset->second == identity.dataset) return "";
  return fmt::format("dataset '{}' instead of '{}'", dataset->second, identity.dataset);
}

std::string scale_difference(const Metadata& weights, const RunIdentity& identity) {
  return is_ours(weights) ? pixel_difference(weights, identity) : "";
}

}  // namespace ddprun::trainer
