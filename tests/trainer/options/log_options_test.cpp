// The options of what is logged.
#include "tests/testing/catch.h"
#include "tests/trainer/options/parse_options.h"

using namespace ddprun::trainer;

TEST_CASE("nothing is logged to files unless it is asked for", "[trainer][options]") {
  const auto options = parse({}).options;
  REQUIRE(options);
  CHECK(options->metrics.empty());
  CHECK(options->report.empty());
  CHECK(options->tensorboard.empty());
  CHECK(options->profile.empty());
  CHECK(options->profile_steps.first == 10);
  CHECK(options->profile_steps.last == 20);
}

TEST_CASE("logs are asked for by name", "[trainer][options]") {
  const auto options = parse({"--metrics", "m_{rank}", "--report", "r.html", "--tensorboard", "tb",
                              "--profile", "p", "--profile-steps", "0:7", "--profile-ops"})
                           .options;
  REQUIRE(options);
  CHECK(options->metrics == "m_{rank}");
  CHECK(options->report == "r.html");
  CHECK(options->tensorboard == "tb");
  CHECK(options->profile == "p");
  CHECK(options->profile_steps.first == 0);
  CHECK(options->profile_steps.last == 7);
  CHECK(options->profile_operations);
}

TEST_CASE("a report is a page, of metrics that are written", "[trainer][options]") {
  for (const auto& arguments : {std::vector<const char*>{"--report", "r.html"},
                                {"--report", "r.json", "--metrics", "m"},
                                {"--metrics", "-"}}) {
    const CommandLine parsed = parse(arguments);
    CHECK_FALSE(parsed.options);
    CHECK(parsed.exit_code == 2);
  }
}

TEST_CASE("windows without a step, and traces of nothing, are refused", "[trainer][options]") {
  const std::vector<std::vector<const char*>> wrong{
      {"--profile", "p", "--profile-steps", "7:7"},
      {"--profile", "p", "--profile-steps", "x"},
      {"--profile", "p", "--profile-steps", ""},
      {"--profile-ops"},
      {"--profile-steps", "1:2"},
      {"--profile", "p", "--evaluate", "--weights", "w"}};
  for (const auto& arguments : wrong) {
    const CommandLine parsed = parse(arguments);
    CHECK_FALSE(parsed.options);
    CHECK(parsed.exit_code == 2);
  }
}
