// The list of settings that must agree: an option that changes the result needs a line here.
#include "trainer/consistency/run_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

namespace ddprun::trainer {
namespace {

constexpr std::size_t differences_shown_max = 4;
// ImageNet's thousand take a sixth of it. All ranks have the text of all: beyond, the checksums of
// the lists, which have the names in them, must do.
constexpr std::size_t class_names_bytes_max = std::size_t{1} << 16;

class Lines {
 public:
  template <typename Value>
  void add(const char* name, const Value& value) {
    text_ += fmt::format("{}\t{}\n", name, value);
  }
  void add_flag(const char* name, bool value) { add(name, value ? "on" : "off"); }
  template <typename Value>
  void add_given(const char* name, const std::optional<Value>& value) {
    add(name, value ? fmt::format("{}", *value) : "none");
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string list_text(const std::vector<float>& values) {
  return values.empty() ? "none" : fmt::format("{}", fmt::join(values, ","));
}

std::string schedule_text(const LearningRateOptions& rate) {
  if (rate.schedule == LearningRateSchedule::Cosine) return "cosine";
  if (rate.milestones.empty()) {
    return fmt::format("times {} every {} epochs", rate.gamma, rate.step_epochs);
  }
  std::string epochs;
  for (const std::int64_t epoch : rate.milestones) epochs += fmt::format(" {}", epoch);
  return fmt::format("times {} after epochs{}", rate.gamma, epochs);
}

std::string exclusion_text(const DecayExclusion& exclusion) {
  return exclusion.batch_norm && exclusion.bias ? "bn,bias"
         : exclusion.batch_norm                 ? "bn"
         : exclusion.bias                       ? "bias"
                                                : "none";
}

void add_optimizer(Lines& lines, const TrainOptions& options) {
  const bool lars = options.optimizer == OptimizerKind::Lars;
  const LearningRateOptions& rate = options.learning_rate;
  lines.add("--optimizer", lars ? "lars" : "sgd");
  lines.add("--lr", rate.base);
  lines.add("--lr-schedule", schedule_text(rate));
  lines.add("--warmup-steps", rate.warmup_steps);
  lines.add("--momentum", options.momentum);
  lines.add_flag("--nesterov", options.nesterov);
  lines.add("--weight-decay", options.weight_decay);
  lines.add("--no-decay", exclusion_text(decay_exclusion_of(options)));
  if (lars) lines.add("--lars-trust", options.lars_trust);
  lines.add_given("--clip-grad-norm", options.clip_grad_norm);
  lines.add_given("--ema", options.ema_decay);
}

// A line for each: the same folders with one more or less give other labels to all that follow.
void add_classes(Lines& lines, const std::string& names) {
  if (names.empty() || names.size() > class_names_bytes_max) return;
  std::istringstream stream(names);
  std::size_t label = 0;
  for (std::string name; std::getline(stream, name, ',');) {
    lines.add(fmt::format("class {}", label++).c_str(), name);
  }
}

using Settings = std::map<std::string, std::string>;

Settings parse(const std::string& text, std::vector<std::string>& names) {
  Settings settings;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    const std::size_t tab = std::min(line.find('\t'), line.size());
    const std::string name = line.substr(0, tab);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    settings[name] = tab < line.size() ? line.substr(tab + 1) : "";
  }
  return settings;
}

std::string value_in(const Settings& settings, const std::string& name) {
  const auto found = settings.find(name);
  return found == settings.end() ? "none" : found->second;
}

// "--batch-size 32 where rank 0 has 64, --lr 0.2 where rank 0 has 0.1"
std::string differences(const std::string& other, const std::string& rank0) {
  std::vector<std::string> names;  // In the order of the texts.
  const Settings expected = parse(rank0, names);
  const Settings found = parse(other, names);
  std::string text;
  std::size_t count = 0;
  for (const std::string& name : names) {
    const std::string own = value_in(found, name);
    const std::string wanted = value_in(expected, name);
    if (own == wanted || ++count > differences_shown_max) continue;
    text += fmt::format("{}{} {} where rank 0 has {}", text.empty() ? "" : ", ", name, own, wanted);
  }
  if (count > differences_shown_max) {
    text += fmt::format(", and {} more differences", count - differences_shown_max);
  }
  return text;
}

}  // namespace

std::string settings_text(const TrainOptions& options, const RunFacts& facts) {
  Lines lines;
  lines.add("--dataset", name_of(options.dataset));
  lines.add("images of", facts.image);
  lines.add("a number of classes of", facts.classes);
  lines.add("a number of training images of", facts.training_images);
  lines.add("a number of validation images of", facts.validation_images);
  lines.add("images prepared as", facts.preparation);
  lines.add("validation images prepared as", facts.validation_preparation);
  lines.add("--mean", list_text(facts.mean));
  lines.add("--std", list_text(facts.deviation));
  lines.add("--on-bad-image", options.skip_bad_images ? "skip" : "fail");
  lines.add("--model", facts.model);
  lines.add_flag("--evaluate", options.evaluate);
  lines.add("--batch-size", facts.micro_batch_size);
  lines.add("--accumulate", options.accumulate);
  lines.add_given("--shards", options.shards);
  lines.add_flag("--balance-shards", options.balance_shards);
  lines.add("--recover", options.recovers_in_place() ? "in-place" : "restart");
  lines.add_given("--steps", options.steps);
  const bool endless = !options.epochs && options.steps;
  lines.add("--epochs", endless ? "as --steps needs" : std::to_string(options.epochs_max()));
  lines.add("--seed", options.seed);
  lines.add("--label-smoothing", options.label_smoothing);
  lines.add_flag("--sync-bn", options.sync_batch_norm);
  lines.add("--grad-dtype", options.gradient_type == GradientType::BFloat16 ? "bf16"
                            : options.gradient_type == GradientType::Half   ? "fp16"
                                                                            : "fp32");
  lines.add_given("--power-sgd", options.power_sgd);
  lines.add_given("--power-sgd-start", options.power_sgd_start);
  // What it leaves out is averaged over all ranks for each checkpoint.
  if (options.power_sgd) lines.add("--checkpoint-every", options.checkpoint_every);
  lines.add("--precision", name_of(options.precision));
  lines.add("--tf32", options.tf32 == Tf32Option::Auto ? "auto"
                      : options.tf32 == Tf32Option::On ? "on"
                                                       : "off");
  // Another rounding on one rank, and the weights go apart.
  lines.add_flag("--fused-optimizer", facts.kernels.optimizer);
  lines.add_flag("--fused-norm", facts.kernels.norm);
  lines.add_flag("--fused-pool", facts.kernels.pool);
  lines.add_flag("--working-copies", facts.kernels.copies);
  // Pixels differ by roundings, and a sample may come to another rank after a restart.
  lines.add_flag("--device-jpeg", options.device_jpeg);
  // NCCL wants a collective recorded on all ranks or on none.
  lines.add_flag("--cuda-graph", options.cuda_graph);
  // Where it is not given the workers decide together, so all must leave it open.
  lines.add_flag("--overlap", options.overlap);
  lines.add("--snapshot-every", options.snapshot_every);
  lines.add("--verify-sync", !options.verify_sync        ? "off"
                             : *options.verify_sync == 0 ? "each epoch"
                                                         : std::to_string(*options.verify_sync));
  add_optimizer(lines, options);
  // Last: what else differs says more than what follows from it.
  add_classes(lines, facts.class_names);
  lines.add("a list of training images with the checksum", facts.training_list);
  lines.add("a list of validation images with the checksum", facts.validation_list);
  return lines.take();
}

std::string settings_difference(const std::vector<std::string>& texts) {
  const auto differs = [&](const std::string& text) { return text != texts.front(); };
  const auto first = std::find_if(texts.begin(), texts.end(), differs);
  if (first == texts.end()) return "";
  const auto more = std::count_if(first + 1, texts.end(), differs);
  return fmt::format(
      "the workers were started with different settings: rank {} has {}{}; start all of them with "
      "the same options and data",
      first - texts.begin(), differences(*first, texts.front()),
      more == 0   ? ""
      : more == 1 ? " (another rank differs from rank 0 too)"
                  : fmt::format(" ({} other ranks differ from rank 0 too)", more));
}

}  // namespace ddprun::trainer
