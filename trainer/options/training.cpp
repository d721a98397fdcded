// Options of `train`: how long training takes, and what a step is. The optimizer and its schedule
// are in optimizer.cpp.
#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "trainer/options/parts.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t micro_batches_max = 65'536;
constexpr int shards_max = 65'536;
constexpr std::int64_t power_sgd_max = 512;  // With more no matrix of our networks gets smaller.
constexpr std::int64_t seconds_max = 10 * 365 * 86'400;  // As nanoseconds it is still a number.

// "90", "90s", "45m", "2h", "1d" in seconds; nothing for any other text.
std::optional<std::int64_t> seconds_of(const std::string& text) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || number < 1 || number > count_max) return std::nullopt;
  const std::string unit(rest, end);
  const std::map<std::string, std::int64_t> units{
      {"", 1}, {"s", 1}, {"m", 60}, {"h", 3'600}, {"d", 86'400}};
  const auto found = units.find(unit);
  if (found == units.end()) return std::nullopt;
  return std::min(number, seconds_max / found->second) * found->second;
}

void add_length_options(CLI::App& app, TrainOptions& options) {
  add_count(app, "--epochs", options.epochs, 0, count_max, "Passes over the data [90]");
  add_count(app, "--steps", options.steps, 1, count_max, "End after so many optimizer steps");
  app.add_option_function<std::string>(
         "--max-time", [&](const std::string& text) { options.max_time_s = seconds_of(text); },
         "Stop this long after the launcher's start, whatever attempt it is, or without ddprun "
         "after this process's: save and exit with 75, as after SIGTERM. Seconds, or as 45m, 2h, "
         "1d")
      ->type_name("TIME")
      ->check(CLI::Validator(
          [](const std::string& text) {
            return seconds_of(text) ? std::string()
                                    : "'" + text + "' is no time: give seconds, or as 45m, 2h, 1d";
          },
          ""));
}

void add_batch_options(CLI::App& app, TrainOptions& options) {
  add_count(app, "--batch-size", options.batch_size, 1, count_max,
            "Images per step, per worker, or per shard with --shards (with --accumulate: per micro "
            "batch) [64]");
  add_count(app, "--global-batch-size", options.global_batch_size, 1, count_max,
            "Images per step over all workers or shards, instead of --batch-size");
  add_count(app, "--accumulate", options.accumulate, 1, micro_batches_max,
            "Micro batches per step and worker, whose gradients are summed up before they travel");
  add_count(
      app, "--shards", options.shards, 1, shards_max,
      "Train as so many workers would, bit for bit, on however many there are, up to as many: "
      "a step is always so many batches. On GPUs: the same samples, not the same bits");
  app.add_flag("--balance-shards", options.balance_shards,
               "A worker that is slow takes fewer shards as soon as steps are faster so: the same "
               "bits. On the CPU");
  add_choice<RecoverOption>(
      app, "--recover", options.recover,
      {{"auto", RecoverOption::Auto},
       {"restart", RecoverOption::Restart},
       {"in-place", RecoverOption::InPlace}},
      "After the loss of a worker: restart, all begin anew from a checkpoint; in-place, with "
      "--shards and where the launcher gives the others a rank again these keep process, data and "
      "model, and redo the step; auto, in-place with --shards, but with --backend mpi restart");
}

// What a worker can leave half done and do again, and with whom.
void check_recovery(const TrainOptions& options) {
  refuse_if(
      !options.shards,
      "--recover in-place needs --shards: without it a step that is done again by other "
      "workers, or by as many, has other bits (each worker's running statistics are its own)");
  refuse_if(options.backend == BackendOption::Mpi,
            "--recover in-place and --backend mpi contradict each other: MPI ends all processes "
            "with the first one that is lost; give --backend cpu, or --recover restart");
}

// What cannot be the same for any number of workers.
void check_shards(const TrainOptions& options) {
  refuse_if(options.sync_batch_norm,
            "--sync-bn and --shards contradict each other: a worker runs its shards one after the "
            "other, and BatchNorm over all of them would need all at the same time");
  refuse_if(options.gradient_type != GradientType::Parameters,
            "--grad-dtype of 16 bits and --shards contradict each other: what is rounded on its "
            "way between workers would depend on which of them has which shard");
  refuse_if(options.power_sgd.has_value(),
            "--power-sgd and --shards contradict each other: what is left out on its way between "
            "workers would depend on which of them has which shard");
  refuse_if(options.data_parallel > 1,
            "--data-parallel and --shards contradict each other: replicas take part of a batch "
            "each; let each worker have one");
  refuse_if(options.print_sample_order.has_value(),
            "--print-sample-order shows what a worker takes: shard v of --shards V takes what "
            "--rank v --world-size V shows");
}

void add_travel_options(CLI::App& app, TrainOptions& options) {
  add_choice<GradientType>(
      app, "--grad-dtype", options.gradient_type,
      {{"fp32", GradientType::Parameters},
       {"bf16", GradientType::BFloat16},
       {"fp16", GradientType::Half}},
      "How gradients travel between workers: fp32, or bf16 or fp16, which halve the bytes");
  add_count(app, "--power-sgd", options.power_sgd, 1, power_sgd_max,
            "Gradients travel as products of thin matrices of this rank, a small part of the "
            "bytes: for slow networks. Not the exact average; the rest is added in later steps");
  add_count(app, "--power-sgd-start", options.power_sgd_start, 0, count_max,
            "With --power-sgd: first so many steps without it [100]");
}

void check_travel(const TrainOptions& options) {
  refuse_if(options.power_sgd_start && !options.power_sgd,
            "--power-sgd-start needs --power-sgd, which says how gradients travel after it");
  if (!options.power_sgd) return;
  refuse_if(options.gradient_type != GradientType::Parameters,
            "--power-sgd and --grad-dtype of 16 bits contradict each other: the matrices travel "
            "in fp32");
}

}  // namespace

void add_training_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Training");
  add_length_options(app, options);
  add_batch_options(app, options);
  app.add_option("--label-smoothing", options.label_smoothing,
                 "Part of the target that is shared by all classes; training only")
      ->check(number_in(0, 1, "a number from 0 to 1"))
      ->capture_default_str();
  app.add_flag("--sync-bn", options.sync_batch_norm,
               "BatchNorm over the batches of all workers, and of their replicas");
  add_travel_options(app, options);
  app.add_option_function<std::vector<std::int64_t>>(
         "--verify-sync",
         [&](const std::vector<std::int64_t>& steps) {
           options.verify_sync = steps.empty() ? 0 : steps.front();
         },
         "Check every N steps [each epoch], and at the end, that all workers hold equal models "
         "(running statistics: with --sync-bn or --shards)")
      ->expected(0, 1)
      ->type_name("N")
      ->check(count_in(1, count_max));
  // Not above what the sampler takes, whose seed is signed as PyTorch's.
  app.add_option("--seed", options.seed, "Of initial weights and sample order")
      ->check(count_in(0, std::numeric_limits<std::int64_t>::max()))
      ->capture_default_str();
  add_optimizer_options(app, options);
}

void check_training_options(const TrainOptions& options) {
  refuse_if(options.batch_size && options.global_batch_size,
            "--batch-size (per worker) and --global-batch-size (of all workers) contradict each "
            "other: give one");
  refuse_if(options.sync_batch_norm && is_conv_net(options.model),
            "--sync-bn has no meaning with --model convnet, which has no batch normalisation");
  refuse_if(options.evaluate && options.max_time_s,
            "--max-time has no meaning with --evaluate, which has nothing to save");
  if (options.shards) check_shards(options);
  check_travel(options);
  refuse_if(options.balance_shards && !options.shards,
            "--balance-shards needs --shards: without it a worker has one batch, and no part of it "
            "to give away");
  if (options.recover == RecoverOption::InPlace) check_recovery(options);
  check_optimizer_options(options);
}

}  // namespace ddprun::trainer
