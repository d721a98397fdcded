// What is printed: lines, the row of a terminal, warnings, and by which rank.
#include "trainer/report/reporter.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/testing/catch.h"
#include "tests/testing/text.h"
#include "tests/trainer/scratch.h"

using namespace ddprun::trainer;

TEST_CASE("only rank 0 reports, in lines that go to a file as JSON too", "[trainer][reporter]") {
  const ScratchFolder folder;
  std::ostringstream out;
  {
    Reporter silent(out, {.enabled = false,
                          .metrics = metrics_path((folder / "none").string(), /*rank=*/1),
                          .tensorboard = folder / "none"});
    silent.validation({});
  }
  CHECK(out.str().empty());
  CHECK_FALSE(std::filesystem::exists(folder / "none"));
  CHECK(metrics_path("a", 0) == "a");
  CHECK(metrics_path("d/r{rank}.x", 12) == "d/r12.x");
  CHECK(metrics_path("r{rank}/m{rank}{rank}", 7) == "r7/m77");

  Reporter reporter(out, {.metrics = folder / "metrics"});
  reporter.validation({.epoch = 1,
                       .step = 5,
                       .images = 10,
                       .loss = 0.5,
                       .prec1 = 90,
                       .prec5 = 99,
                       .best_prec1 = 91,
                       .seconds = 2});

  CHECK(contains(out.str(), " * Prec@1 90.000 Prec@5 99.000"));
  const auto json = nlohmann::json::parse(content_of(folder / "metrics"));
  CHECK(json["event"] == "validation");
  CHECK(json["prec1"] == 90);
  CHECK_THROWS_AS(Reporter(out, {.metrics = folder / "no/such"}), std::runtime_error);
}

TEST_CASE("a half line of an earlier run costs no line of this one", "[trainer][reporter]") {
  const ScratchFolder folder;
  for (const std::string before : {"", "{\"event\":\"end\"}\n", "{\"event\":\"tr"}) {
    write_bytes(folder / "metrics", before);
    std::ostringstream out;
    Reporter(out, {.metrics = folder / "metrics"}).end("end", {});

    const std::string after = content_of(folder / "metrics");
    CHECK(after.starts_with(before));
    const std::size_t line = after.rfind('\n', after.size() - 2) + 1;  // Of none: 0.
    CHECK(nlohmann::json::parse(after.substr(line))["event"] == "end");
    CHECK(line == before.size() + (before.ends_with("tr") ? 1 : 0));
  }
}

TEST_CASE("a page that takes long is not written after each epoch, and at the end",
          "[trainer][reporter]") {
  const ScratchFolder folder;
  std::string before;
  for (int step = 1; step <= 20'000; ++step) {
    before += "{\"event\":\"train\",\"epoch\":0,\"step\":" + std::to_string(step) +
              ",\"loss\":1.5,\"time\":1}\n";
  }
  write_bytes(folder / "metrics", before);
  std::ostringstream out;
  Reporter reporter(out, {.metrics = folder / "metrics",
                          .page = folder / "page.html",
                          .page_of = (folder / "metrics").string()});
  const EpochReport epoch{.epoch = 1, .epochs = 9, .step = 7, .steps = 7, .steps_per_epoch = 7};
  reporter.epoch(epoch);
  CHECK(std::filesystem::remove(folder / "page.html"));

  reporter.epoch(epoch);
  CHECK_FALSE(std::filesystem::exists(folder / "page.html"));

  reporter.end("end", {});
  CHECK(std::filesystem::exists(folder / "page.html"));
}

TEST_CASE("a page that cannot be written any more costs a warning, and one at the end",
          "[trainer][reporter]") {
  const ScratchFolder folder;
  std::ostringstream out, errors;
  std::streambuf* const before = std::cerr.rdbuf(errors.rdbuf());
  Reporter reporter(out, {.metrics = folder / "metrics",
                          .page = folder / "page.html",
                          .page_of = (folder / "metrics").string()});
  const bool left_behind = std::filesystem::exists(folder / "page.html.new");
  std::filesystem::create_directory(folder / "page.html");  // By somebody else.
  for (int epoch = 1; epoch <= 2; ++epoch) reporter.epoch({.epoch = epoch, .epochs = 2});
  reporter.end("end", {});
  std::cerr.rdbuf(before);

  CHECK_FALSE(left_behind);
  CHECK_FALSE(std::filesystem::exists(folder / "page.html.new"));
  INFO(errors.str());
  CHECK(ddprun::testing::count_of(errors.str(), "train: warning: --report: ") == 2);
  CHECK(ddprun::testing::count_of(errors.str(), "tried again after a later epoch") == 1);
}

TEST_CASE("what a node lacks is told by its first rank too", "[trainer][reporter]") {
  std::ostringstream out;
  std::ostringstream errors;
  std::streambuf* const before = std::cerr.rdbuf(errors.rdbuf());
  Reporter(out, {.enabled = false}).node_warning("another rank of the node");
  Reporter first_of_node(out, {.enabled = false, .of_node = true});
  first_of_node.warning("of the job");
  first_of_node.node_warning("of the node");
  Reporter(out, {}).node_warning("of rank 0's node");
  std::cerr.rdbuf(before);
  CHECK(errors.str() == "train: warning: of the node\ntrain: warning: of rank 0's node\n");
  CHECK(out.str().empty());
}

// Which ThreadSanitizer sees, if what both change is not held.
TEST_CASE("a loader's thread may warn while steps are told", "[trainer][reporter]") {
  std::ostringstream errors;
  std::streambuf* const before = std::cerr.rdbuf(errors.rdbuf());
  for (const bool terminal : {true, false}) {
    std::ostringstream out;
    constexpr int count = 100;
    {
      Reporter reporter(out, {.terminal = terminal});
      std::thread loader([&] {
        for (int i = 0; i < count; ++i) reporter.node_warning("of an image");
      });
      for (int i = 0; i < count; ++i) {
        reporter.epoch({.epoch = i + 1, .epochs = count, .save = EpochReport::Save::Begun});
        if (reporter.progress_due()) reporter.progress({});
        reporter.validating("epoch", i, count);
      }
      loader.join();
    }
    const std::string text = out.str();
    for (int i = 1; i <= count; ++i) {
      CHECK(contains(text, "epoch " + std::to_string(i) + "/" + std::to_string(count)));
    }
  }
  std::cerr.rdbuf(before);
  std::string expected;
  for (int i = 0; i < 200; ++i) expected += "train: warning: of an image\n";
  CHECK(errors.str() == expected);
}

TEST_CASE("a progress line fits the terminal and is wiped before other lines",
          "[trainer][reporter]") {
  StepReport report;
  report.step_in_epoch = 5;
  report.steps_per_epoch = 10;
  report.remaining_s = 75;
  CHECK(contains(progress_line(report, 200), "##########.........."));
  CHECK(contains(progress_line(report, 200), "ETA 1:15"));
  for (std::size_t columns = 0; columns < 130; ++columns) {
    const std::string line = progress_line(report, columns);
    INFO(columns << ": " << line);
    CHECK(line.size() <= columns);
    if (columns >= 25) CHECK(contains(line, "ETA 1:15"));
  }

  std::ostringstream out;
  {
    Reporter reporter(out, {.terminal = true});
    reporter.progress(report);
    reporter.line("next");
  }
  CHECK(out.str().ends_with("\r\x1b[Knext\n"));
  {
    Reporter failing(out, {.terminal = true});
    failing.progress(report);
  }
  CHECK(out.str().ends_with("\r\x1b[K"));  // Why it failed is told next.
}

TEST_CASE("17.1: a progress line follows the terminal's width, and never goes on in the next line",
          "[trainer][reporter]") {
  StepReport report;
  report.step_in_epoch = 5;
  report.steps_per_epoch = 10;
  std::size_t columns = 70;
  std::ostringstream out;
  Reporter reporter(out, {.terminal = true, .columns = [&] { return columns; }});
  const auto drawn = [&] {
    out.str("");
    reporter.progress(report);
    return out.str();
  };
  const auto row_of = [&](std::size_t width) {
    return "\r\x1b[?7l" + progress_line(report, width - 1) + "\x1b[K\x1b[?7h";
  };

  CHECK(drawn() == row_of(70));
  columns = 40;
  CHECK(drawn() == row_of(40));
  columns = 0;  // Not to be had for a moment.
  CHECK(drawn() == row_of(40));
}

TEST_CASE("a rank that stands has neither speed nor end", "[trainer][reporter]") {
  StepReport report;
  report.epochs = 3;
  report.step_in_epoch = 5;
  report.steps_per_epoch = 10;
  report.remaining_s = 75;
  report.images_per_s = 26'000;
  report.time_s.update(0.5);
  CHECK(contains(progress_line(report, 100, 4), "26k img/s"));
  const std::string standing = progress_line(report, 100, 72);
  INFO(standing);
  CHECK(contains(standing, "epoch 1/3  5/10"));
  CHECK(contains(standing, "no step for 1:12"));
  CHECK_FALSE(contains(standing, "ETA"));
  CHECK_FALSE(contains(standing, "img/s"));
  report.time_s.update(15);  // Steps that take long do not stand.
  CHECK(contains(progress_line(report, 100, 30), "ETA 1:15"));
}

TEST_CASE("an epoch is saved when its checkpoint is, and not before", "[trainer][reporter]") {
  const EpochReport epoch{.epoch = 1,
                          .epochs = 2,
                          .step = 7,
                          .steps = 7,
                          .steps_per_epoch = 7,
                          .train_loss = 1,
                          .seconds = 1,
                          .save = EpochReport::Save::Begun};
  std::ostringstream out;
  Reporter reporter(out, {});
  reporter.epoch(epoch);
  reporter.written(6);
  CHECK(out.str().empty());
  reporter.written(7);
  CHECK(out.str().ends_with("0:01  saved\n"));

  reporter.epoch(epoch);
  reporter.line("next");
  CHECK(out.str().ends_with("0:01  saving\nnext\n"));

  std::ostringstream lost;
  {
    Reporter failing(lost, {});
    failing.epoch(epoch);
  }
  CHECK(lost.str().ends_with("0:01\n"));
}
