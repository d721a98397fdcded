// Options of `train`: the optimizer and the schedule of its learning rate.
#include "trainer/options/parts.h"

namespace ddprun::trainer {
namespace {

std::vector<std::int64_t> parse_milestones(const std::string& text) {
  std::vector<std::int64_t> epochs;
  for (const std::string& part : split_list(text)) {
    const auto epoch = parse_number<std::int64_t>(part);
    if (!epoch || *epoch < 1 || *epoch > count_max ||
        (!epochs.empty() && *epoch <= epochs.back())) {
      throw CLI::ValidationError("--lr-milestones", "'" + text +
                                                        "' is not a list of ascending epochs >= 1, "
                                                        "such as 30,60,80");
    }
    epochs.push_back(*epoch);
  }
  return epochs;
}

DecayExclusion parse_exclusion(const std::string& text) {
  DecayExclusion exclusion;
  for (const std::string& part : split_list(text)) {
    if (part == "bn") {
      exclusion.batch_norm = true;
    } else if (part == "bias") {
      exclusion.bias = true;
    } else if (part != "none" || text != "none") {
      throw CLI::ValidationError("--no-decay", "'" + text + "' is not bn, bias, both, or none");
    }
  }
  return exclusion;
}

void add_schedule_options(CLI::App& app, LearningRateOptions& rate) {
  app.add_option("--lr", rate.base, "Learning rate")
      ->check(number_in(0, number_max, "a number of at least 0"))
      ->capture_default_str();
  app.add_option_function<std::vector<std::int64_t>>(
         "--scale-lr",
         [&](const std::vector<std::int64_t>& batch) {
           rate.reference = LearningRateReference{batch.empty() ? 0 : batch.front()};
         },
         "--lr is for one worker, or with BATCH for so many images a step: scale it to this run")
      ->expected(0, 1)
      ->type_name("BATCH")
      ->check(count_in(1, count_max));
  add_choice<LearningRateSchedule>(app, "--lr-schedule", rate.schedule,
                                   {{"step", LearningRateSchedule::Step},
                                    {"multistep", LearningRateSchedule::MultiStep},
                                    {"cosine", LearningRateSchedule::Cosine}},
                                   "step: times --lr-gamma every --lr-step-epochs; multistep: at "
                                   "--lr-milestones; cosine: to 0 one step after the last");
  add_count(app, "--lr-step-epochs", rate.step_epochs, 1, count_max,
            "Epochs between drops of the learning rate");
  app.add_option_function<std::string>(
         "--lr-milestones",
         [&](const std::string& text) { rate.milestones = parse_milestones(text); },
         "Epochs after which the learning rate drops; implies multistep")
      ->type_name("EPOCH,...");
  app.add_option("--lr-gamma", rate.gamma, "What the learning rate is multiplied by at a drop")
      ->check(number_in(0, 1, "a number from 0 to 1"))
      ->capture_default_str();
  add_count(app, "--warmup-steps", rate.warmup_steps, 0, count_max,
            "Steps over which the learning rate rises at first");
  add_count(app, "--warmup-epochs", rate.warmup_epochs, 0, count_max, "The same in epochs");
}

void check_schedule_options(const LearningRateOptions& rate) {
  const bool cosine = rate.schedule == LearningRateSchedule::Cosine;
  refuse_if(rate.schedule == LearningRateSchedule::MultiStep && rate.milestones.empty(),
            "--lr-schedule multistep needs --lr-milestones, such as 30,60,80");
  refuse_if(cosine && !rate.milestones.empty(),
            "--lr-milestones and --lr-schedule cosine contradict each other");
  // By their values: whoever gives the default asks for nothing that is left out.
  refuse_if(
      (cosine || !rate.milestones.empty()) && rate.step_epochs != LearningRateOptions{}.step_epochs,
      cosine ? "--lr-step-epochs has no meaning with --lr-schedule cosine"
             : "--lr-step-epochs and --lr-milestones contradict each other: give one");
  refuse_if(cosine && rate.gamma != LearningRateOptions{}.gamma,
            "--lr-gamma has no meaning with --lr-schedule cosine");
  refuse_if(rate.warmup_steps > 0 && rate.warmup_epochs > 0,
            "--warmup-steps and --warmup-epochs contradict each other: give one");
}

void add_update_options(CLI::App& app, TrainOptions& options) {
  app.add_option("--momentum", options.momentum, "Part of the last update that goes on")
      ->check(number_in(0, 1, "a number from 0 to 1"))
      ->capture_default_str();
  app.add_flag("--nesterov", options.nesterov, "Nesterov's momentum");
  app.add_option("--weight-decay", options.weight_decay, "Pull of weights towards 0")
      ->check(number_in(0, number_max, "a number of at least 0"))
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--no-decay", [&](const std::string& text) { options.no_decay = parse_exclusion(text); },
         "Parameters without weight decay: bn, bias, bn,bias, or none [lars: bn,bias; sgd: none]")
      ->type_name("KIND,...");
  app.add_option("--lars-trust", options.lars_trust, "LARS's trust coefficient")
      ->check(number_in(number_min, number_max, "a number above 0"))
      ->capture_default_str();
  app.add_option("--clip-grad-norm", options.clip_grad_norm,
                 "Scale the averaged gradient down to this norm where it is longer")
      ->check(number_in(number_min, number_max, "a number above 0"));
  app.add_option("--ema", options.ema_decay,
                 "Average the weights with this decay after each step, such as 0.999; validation "
                 "reports both")
      ->check(number_in(0, 1, "a number from 0 to below 1"))
      ->type_name("DECAY");
}

}  // namespace

// A scale or shift has no direction, which is what LARS goes by: its users leave both kinds without
// decay.
DecayExclusion decay_exclusion_of(const TrainOptions& options) {
  const bool lars = options.optimizer == OptimizerKind::Lars;
  return options.no_decay.value_or(DecayExclusion{.batch_norm = lars, .bias = lars});
}

void add_optimizer_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Optimization");
  add_choice<OptimizerKind>(app, "--optimizer", options.optimizer,
                            {{"sgd", OptimizerKind::Sgd}, {"lars", OptimizerKind::Lars}},
                            "sgd, or lars: a rate of its own for each layer, for large batches");
  add_schedule_options(app, options.learning_rate);
  add_update_options(app, options);
}

void check_optimizer_options(const TrainOptions& options) {
  check_schedule_options(options.learning_rate);
  refuse_if(options.nesterov && options.momentum == 0, "--nesterov needs a --momentum above 0");
  refuse_if(
      options.optimizer != OptimizerKind::Lars && options.lars_trust != TrainOptions{}.lars_trust,
      "--lars-trust has no meaning without --optimizer lars");
  refuse_if(options.ema_decay && *options.ema_decay == 1,
            "--ema 1 would keep the first step's weights: give a decay below 1, such as 0.999");
}

}  // namespace ddprun::trainer
