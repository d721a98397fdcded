// What stands in the file and what must fit before anything is loaded; names and disks are others'.
#include "trainer/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>
#include <sstream>
#include <utility>

#include "worker/parse_number.h"

namespace ddprun::trainer {
namespace {

constexpr const char* format_key = "format";
constexpr const char* format_name = "ddprun-checkpoint-1";
constexpr const char* weights_name = "pt";  // What Python's writers call a file of torch weights.
constexpr std::string_view module_prefix = "module.";
constexpr std::string_view compiled_part = "_orig_mod.";
constexpr std::size_t names_listed_max = 5;
// What a resumed run counts on from must leave room for what it adds and multiplies: --epochs takes
// no more, and what travels between ranks as a double (resume.cpp) is a whole number up to there.
constexpr std::int64_t epochs_max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t exact_count_max = std::int64_t{1} << 53;
constexpr const char* validation_list_key = "validation_list_xxh64";
constexpr const char* validation_resize_key = "validation_resize";
constexpr const char* validation_weights_key = "validation_weights";
constexpr const char* mean_key = "mean";
constexpr const char* deviation_key = "std";
constexpr const char* precision_key = "precision";

Metadata validation_metadata(const ValidationIdentity& validation) {
  return {{validation_list_key, validation.list_checksum},
          {validation_resize_key, std::to_string(validation.resize)},
          {validation_weights_key, validation.averaged ? "averaged" : "as trained"}};
}

// The shortest digits that give the same floats.
Metadata pixel_metadata(const Normalization& normalization) {
  if (normalization.mean.empty()) return {};
  return {{mean_key, fmt::format("{}", fmt::join(normalization.mean, ","))},
          {deviation_key, fmt::format("{}", fmt::join(normalization.deviation, ","))}};
}

// What both tell of and is not the same, in words.
std::string difference(const Metadata& found, const Metadata& wanted) {
  std::string text;
  for (const auto& [key, now] : wanted) {
    const auto then = found.find(key);
    if (then == found.end() || then->second == now) continue;
    text +=
        fmt::format("{}{} '{}' instead of '{}'", text.empty() ? "" : ", ", key, then->second, now);
  }
  return text;
}

// In what the validation that `found` tells of is other than this run's, in words; "" where it is
// not, or one of the two tells of none, as files of older versions.
std::string validation_difference(const Metadata& found, const RunIdentity& identity) {
  if (!identity.validation) return "";
  Metadata wanted = validation_metadata(*identity.validation);
  wanted.merge(pixel_metadata(identity.normalization));
  return difference(found, wanted);
}

std::map<std::string, std::string> describe(const RunIdentity& identity,
                                            const TrainingState& state) {
  std::map<std::string, std::string> metadata{
      {"model", identity.model},
      {"dataset", identity.dataset},
      {"image", identity.image},
      {"classes", std::to_string(identity.classes)},
      {"epoch", std::to_string(state.epoch)},
      {"samples_done", std::to_string(state.samples_done)},
      {"step", std::to_string(state.step)},
      {"best_prec1", fmt::format("{:.17g}", state.best_prec1)}};
  if (identity.seed) metadata["seed"] = std::to_string(*identity.seed);
  metadata.merge(data_metadata(identity.data));
  if (identity.validation) metadata.merge(validation_metadata(*identity.validation));
  metadata.merge(pixel_metadata(identity.normalization));
  metadata[precision_key] = name_of(identity.precision);
  return metadata;
}

NamedTensors model_tensors(const torch::nn::Module& model) {
  NamedTensors tensors;
  for (const auto& entry : model.named_parameters())
    tensors.emplace_back(entry.key(), entry.value());
  for (const auto& entry : model.named_buffers()) tensors.emplace_back(entry.key(), entry.value());
  return tensors;
}

const std::string& metadata_value(const Safetensors& file, const std::string& key,
                                  const std::string& name) {
  const auto found = file.metadata.find(key);
  if (found == file.metadata.end()) {
    throw CheckpointError(fmt::format("{}: its metadata lacks '{}'", name, key));
  }
  return found->second;
}

std::int64_t metadata_count(const Safetensors& file, const std::string& key,
                            const std::string& name, std::int64_t most) {
  const std::string& text = metadata_value(file, key, name);
  const auto value = worker::parse_number<std::int64_t>(text);
  if (!value || *value < 0 || *value > most) {
    throw CheckpointError(
        fmt::format("{}: '{}' in its metadata is '{}', expected a whole number from 0 to {}", name,
                    key, text, most));
  }
  return *value;
}

double metadata_percent(const Safetensors& file, const std::string& key, const std::string& name) {
  const std::string& text = metadata_value(file, key, name);
  const auto value = worker::parse_number<double>(text);
  if (!value || !(*value >= 0 && *value <= 100)) {
    throw CheckpointError(
        fmt::format("{}: '{}' in its metadata is '{}', expected 0 to 100", name, key, text));
  }
  return *value;
}

// Those of `keys`, as "model 'a' instead of 'b', ...".
std::string differences_in(std::initializer_list<std::string> keys, const Safetensors& file,
                           const std::string& name, const RunIdentity& identity) {
  std::string differences;
  const std::map<std::string, std::string> expected = describe(identity, {});
  for (const std::string& key : keys) {
    const std::string& found = metadata_value(file, key, name);
    const auto wanted = expected.find(key);
    if (wanted != expected.end() && found != wanted->second) {
      differences += fmt::format("{}{} '{}' instead of '{}'", differences.empty() ? "" : ", ", key,
                                 found, wanted->second);
    }
  }
  return differences;
}

std::string joined(const std::string& a, const std::string& b) {
  return a.empty() || b.empty() ? a + b : a + ", " + b;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), names_listed_max); ++i) {
    text += (i > 0 ? ", " : "") + names[i];
  }
  return names.size() > names_listed_max ? fmt::format("{} ... ({} in all)", text, names.size())
                                         : text;
}

// Why an accuracy that `file` tells is none that this run's could be compared with, in words; "":
// it is one.
std::string other_validation(const Safetensors& file, const std::string& name,
                             const RunIdentity& identity) {
  // Files of older versions tell of no validation; it goes with the images of training, then.
  const bool told = file.metadata.contains(validation_list_key);
  const DataIdentity classes{.class_names = identity.data.class_names};
  return joined(joined(differences_in({"dataset", "image"}, file, name, identity),
                       data_difference(file.metadata, told ? classes : identity.data)),
                validation_difference(file.metadata, identity));
}

void check_part(const CheckpointPart& part, const PartState& state, const std::string& name) {
  if (!part.check) return;
  try {
    part.check(state);
  } catch (const std::invalid_argument& error) {
    throw ForeignCheckpointError(fmt::format("{}: {}", name, error.what()));
  }
}

// What is left with a '/' belongs to parts that this run does not have.
std::vector<std::string> take_unknown_parts(Safetensors& file) {
  std::set<std::string> names;
  const auto note = [&](const std::string& key) {
    if (const std::size_t end = key.find('/'); end != std::string::npos) {
      names.insert(key.substr(0, end));
    }
  };
  for (const auto& [key, tensor] : file.tensors) note(key);
  for (const auto& [key, value] : file.metadata) note(key);
  for (const std::string& name : names) take_part(name, file);
  return {names.begin(), names.end()};
}

}  // namespace

// All at once, so that the user need not find them one by one.
std::vector<std::string> check_identity(const Safetensors& file, const std::string& name,
                                        const RunIdentity& identity, IdentityCheck check) {
  const std::string shape = differences_in({"model", "classes"}, file, name, identity);
  const std::string data =
      joined(differences_in({"dataset", "image", "seed"}, file, name, identity),
             data_difference(file.metadata, identity.data));
  const bool allowed = shape.empty() && check == IdentityCheck::Anyway;
  if (!(shape + data).empty() && !allowed) {
    throw ForeignCheckpointError(
        fmt::format("{} is a checkpoint of another run: {}. Give that run's options{}, or another "
                    "--checkpoint-dir",
                    name, joined(shape, data),
                    shape.empty() ? " and data, --resume-anyway to go on all the same" : ""));
  }
  std::vector<std::string> warnings;
  if (!data.empty()) {
    warnings.push_back(
        fmt::format("{} is a checkpoint of another run: {}. --resume-anyway goes on", name, data));
  }
  if (const std::string pixels = pixel_difference(file.metadata, identity); !pixels.empty()) {
    warnings.push_back(other_pixels_text(name, pixels));
  }
  if (!tells_data(file.metadata) && !identity.data.list_checksum.empty()) {
    warnings.push_back(fmt::format(
        "{} does not tell which images it was trained on, as those of older versions: that they "
        "are the same is not checked",
        name));
  }
  return warnings;
}

Safetensors make_weights(const RunIdentity& identity, const TrainingState& state,
                         const torch::nn::Module& model) {
  Safetensors file{model_tensors(model), describe(identity, state)};
  file.metadata[format_key] = weights_name;
  return file;
}

Safetensors make_checkpoint(const RunIdentity& identity, const TrainingState& state,
                            const torch::nn::Module& model, const CheckpointParts& parts) {
  Safetensors file{model_tensors(model), describe(identity, state)};
  file.metadata[format_key] = format_name;
  for (const CheckpointPart& part : parts) add_part(part.name, part.save(), file);
  return file;
}

RestoredCheckpoint restore_checkpoint(Safetensors file, const std::string& name,
                                      const RunIdentity& identity, torch::nn::Module& model,
                                      const CheckpointParts& parts, IdentityCheck check) {
  if (const auto format = file.metadata.find(format_key);
      format == file.metadata.end() || format->second != format_name) {
    throw ForeignCheckpointError(
        fmt::format("{} holds weights only, without the state of training: load "
                    "it with --weights",
                    name));
  }
  metadata_value(file, checksum_key, name);  // Checked by the reader, if it is there.
  RestoredCheckpoint restored;
  restored.warnings = check_identity(file, name, identity, check);
  restored.state = {
      .epoch = metadata_count(file, "epoch", name, epochs_max),
      .samples_done = metadata_count(file, "samples_done", name, exact_count_max),
      .step = step_of(file, name),
      .best_prec1 = metadata_percent(file, "best_prec1", name),
  };
  const std::string other = other_validation(file, name, identity);
  if (!other.empty() && std::exchange(restored.state.best_prec1, 0) > 0 && identity.validation) {
    restored.warnings.push_back(
        fmt::format("{} has its best accuracy from another validation ({}): it does not count any "
                    "more, and the next validation's weights replace best.safetensors",
                    name, other));
  }
  std::vector<PartState> states;
  for (const CheckpointPart& part : parts) {
    states.push_back(take_part(part.name, file));
    check_part(part, states.back(), name);
  }
  restored.unknown_parts = take_unknown_parts(file);
  // After all checks of the parts: a checkpoint that is refused has changed nothing, so an older
  // one can still be tried.
  load_weights(file.tensors, name, model);
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i].restore(states[i]);
  return restored;
}

std::string pixel_difference(const Metadata& found, const RunIdentity& identity) {
  return difference(found, pixel_metadata(identity.normalization));
}

std::string other_numbers_text(const Metadata& found, const RunIdentity& identity) {
  if (!pixel_difference(found, identity).empty()) {
    return "on pixels of another scale than it was trained on";
  }
  const auto precision = found.find(precision_key);
  if (precision == found.end() || precision->second == name_of(identity.precision)) return "";
  return fmt::format("with --precision {}, where it was trained with {}",
                     name_of(identity.precision), precision->second);
}

std::string other_pixels_text(const std::string& name, const std::string& difference) {
  return fmt::format(
      "{} was trained on pixels of another scale: {}. To go on with those that it knows give its "
      "--mean and --std",
      name, difference);
}

std::int64_t step_of(const Safetensors& file, const std::string& name) {
  return metadata_count(file, "step", name, exact_count_max);
}

double accuracy_in(const Safetensors& file, const std::string& name, const RunIdentity& identity) {
  if (!other_validation(file, name, identity).empty()) return 0;
  return metadata_percent(file, "best_prec1", name);
}

std::string unwrapped_name(std::string name) {
  // First, since compile(DDP(model)) has it in front of "module.". Parts may be compiled alone, so
  // it may be anywhere, but as a whole part of the name: no layer of torchvision is called that.
  for (std::size_t at = 0; (at = name.find(compiled_part, at)) != std::string::npos;) {
    if (at == 0 || name[at - 1] == '.') {
      name.erase(at, compiled_part.size());
    } else {
      at += compiled_part.size();
    }
  }
  if (name.starts_with(module_prefix)) name.erase(0, module_prefix.size());
  return name;
}

void load_weights(const NamedTensors& tensors, const std::string& name, torch::nn::Module& model) {
  std::map<std::string, torch::Tensor> given;
  for (const auto& [key, tensor] : tensors) {
    given[unwrapped_name(key)] = tensor;
  }
  std::vector<std::string> missing, misshapen;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;  // to, from
  for (const auto& [key, target] : model_tensors(model)) {
    const auto found = given.find(key);
    if (found == given.end()) {
      missing.push_back(key);
    } else if (found->second.sizes() != target.sizes()) {
      std::ostringstream shapes;
      shapes << key << " " << found->second.sizes() << " instead of " << target.sizes();
      misshapen.push_back(shapes.str());
    } else {
      copies.emplace_back(target, found->second);
    }
    if (found != given.end()) given.erase(found);
  }
  std::vector<std::string> unexpected;
  for (const auto& [key, tensor] : given) unexpected.push_back(key);
  if (!missing.empty() || !misshapen.empty() || !unexpected.empty()) {
    std::string text = name + " does not fit this model:";
    if (!missing.empty()) text += " missing " + listed(missing) + ";";
    if (!unexpected.empty()) text += " unexpected " + listed(unexpected) + ";";
    if (!misshapen.empty()) text += " wrong shape " + listed(misshapen) + ";";
    text.pop_back();
    throw ForeignCheckpointError(text);
  }
  torch::NoGradGuard no_grad;
  for (auto& [to, from] : copies) to.copy_(from);
}

}  // namespace ddprun::trainer
