// Options of `train`: what is printed and logged.
#include "trainer/options_parts.h"

namespace ddprun::trainer {

void add_output_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Output");
  add_count(app, "--print-freq", options.print_freq, 1, count_max, "Steps between printed lines");
  app.add_flag_callback(
      "--no-validation", [&] { options.validation = false; }, "Do not validate after epochs");
  app.add_flag("--evaluate", options.evaluate, "Only validate the given weights or checkpoint");
  app.add_option("--metrics", options.metrics, "Append JSON lines to this file");
  app.add_option_function<std::vector<std::int64_t>>(
         "--print-sample-order",
         [&](const std::vector<std::int64_t>& epoch) {
           options.print_sample_order = epoch.empty() ? 0 : epoch.front();
         },
         "Print this rank's sample indices of an epoch [0], one a line, and exit")
      ->expected(0, 1)
      ->type_name("EPOCH")
      ->check(CLI::Range(std::int64_t{0}, count_max).description(""));
}

void check_output_options(const TrainOptions& options) {
  refuse_if(options.evaluate && !options.validation,
            "--evaluate and --no-validation contradict each other");
}

}  // namespace ddprun::trainer
