// Options of `train`: what is printed and logged.
#include "trainer/options/parts.h"

namespace ddprun::trainer {

namespace {

void add_profile_options(CLI::App& app, TrainOptions& options) {
  CLI::Option* const profile =
      app.add_option(
             "--profile", options.profile,
             "Write a trace of some steps here, rank_N.json of each rank N, for Perfetto and "
             "chrome://tracing")
          ->type_name("DIR");
  app.add_option_function<std::string>(
         "--profile-steps",
         [&](const std::string& text) {
           options.profile_steps = parse_profile_window(text).value();
         },
         "Trace from when FIRST steps of this process are done until LAST are [10:20]")
      ->type_name("FIRST:LAST")
      ->needs(profile)
      ->check(CLI::Validator(
          [](const std::string& text) {
            if (parse_profile_window(text)) return std::string();
            return "'" + text + "' is no FIRST:LAST with 0 <= FIRST < LAST, like 10:20";
          },
          ""));
  app.add_flag("--profile-ops", options.profile_operations,
               "Trace LibTorch's operations too; slows the traced steps down");
}

}  // namespace

void add_output_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Output");
  add_count(app, "--print-freq", options.print_freq, 1, count_max,
            "Steps between events of --metrics and --tensorboard; given, also between printed "
            "lines, in validation batches, which otherwise come by time")
      ->each([&options](const std::string&) { options.step_lines = true; });
  app.add_flag("--print-all-ranks", options.print_all_ranks,
               "Every worker prints its lines, with its own loss and times, not rank 0 alone");
  app.add_flag_callback(
      "--no-validation", [&] { options.validation = false; }, "Do not validate after epochs");
  app.add_flag("--evaluate", options.evaluate,
               "Only validate the given weights or checkpoint; needs no training images");
  CLI::Option* const metrics =
      app.add_option(
             "--metrics", options.metrics,
             "Append rank 0's JSON lines to this file; with {rank} in its name every rank's to "
             "its own")
          ->type_name("FILE")
          ->check(CLI::Validator(
              [](const std::string& name) {
                if (name != "-") return std::string();
                return std::string(
                    "'-' is no file: /dev/stdout is standard output, and ./- a file of that name");
              },
              ""));
  app.add_option("--report", options.report,
                 "Write what --metrics tells as a page with pictures, after epochs (in at most 1 % "
                 "of the time) and at the end; ddprun plot lays several runs over each other")
      ->type_name("FILE.html")
      ->needs(metrics)
      ->check(CLI::Validator(
          [](const std::string& name) {
            if (name.ends_with(".html")) return std::string();
            return "it is a page for a browser, so '" + name + "' must end in .html";
          },
          ""));
  app.add_option("--tensorboard", options.tensorboard, "Write TensorBoard's event files here")
      ->type_name("DIR");
  add_profile_options(app, options);
  app.add_option_function<std::vector<std::int64_t>>(
         "--print-sample-order",
         [&](const std::vector<std::int64_t>& epoch) {
           options.print_sample_order = epoch.empty() ? 0 : epoch.front();
         },
         "Print this rank's sample indices of an epoch [0], one a line, and exit")
      ->expected(0, 1)
      ->type_name("EPOCH")
      ->check(count_in(0, count_max));
}

void check_output_options(const TrainOptions& options) {
  refuse_if(options.evaluate && !options.validation,
            "--evaluate and --no-validation contradict each other");
  refuse_if(options.profile_operations && options.profile.empty(),
            "--profile-ops needs --profile DIR");
  refuse_if(options.evaluate && !options.profile.empty(),
            "--profile traces training steps, and --evaluate does none");
}

}  // namespace ddprun::trainer
