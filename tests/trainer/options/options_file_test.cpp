// What `train` reads from a file of options: the values that stand there, or nothing.
#include "trainer/options/options_file.h"

#include <fstream>
#include <sstream>

#include "tests/testing/catch.h"
#include "tests/trainer/options/parse_options.h"
#include "tests/trainer/scratch.h"
#include "trainer/options/read_command_line.h"

using namespace ddprun::trainer;

namespace {

// What comes of a file with this text, and of the words after it.
CommandLine read_file(const std::string& text, std::vector<const char*> words = {}) {
  const ScratchFolder folder;
  const std::string file = (folder / "job.toml").string();
  std::ofstream(file) << text;
  words.insert(words.begin(), {"-c", file.c_str()});
  return parse(words);
}

}  // namespace

TEST_CASE("a comment begins outside of quotes", "[trainer][options]") {
  CHECK(plain_options("a = \"run#1\" # One.\n# Two.\nb = 'x#\"y' # 'z\n") ==
        "a = \"run#1\"\n\nb = 'x#\"y'\n");
  CHECK(plain_options("a = it's#1\n;'\n") == "a = it's\n\n");
  CHECK(read_file("data = \"run#1\"").options->data == "run#1");
  CHECK(read_file("data = 'a, b\\c' # x").options->data == "a, b\\c");
  CHECK(read_file("data = \"\"").options->data == "data/mnist");
}

TEST_CASE("a mark of the byte order and ends of lines are no part of options",
          "[trainer][options]") {
  const auto options = read_file("\xEF\xBB\xBFlr = 0.5\r\ndata = \"x\"\r\n").options;
  REQUIRE(options);
  CHECK(options->learning_rate.base == 0.5);
  CHECK(options->data == "x");
}

TEST_CASE("a list may have several lines", "[trainer][options]") {
  for (const char* text : {"lr-milestones = [3, 5]", "lr-milestones = [3,\n5]",
                           "lr-milestones = [\n  3, # Three.\n  5\n]  # Five.\n"}) {
    const auto options = read_file(text).options;
    REQUIRE(options);
    CHECK(options->learning_rate.milestones == std::vector<std::int64_t>{3, 5});
  }
  CHECK(contains(read_file("lr = 1\nlr-milestones = [3,\nsteps = 2\n").problem,
                 "line 2: a list without its ]"));
}

TEST_CASE("what would be read as another value is refused with its line", "[trainer][options]") {
  CHECK(contains(read_file("lr = 1\ndata = \"a\\tb\"").problem, "line 2: a \\ in quotes"));
  CHECK(contains(read_file("data = 'a\\'").problem, "line 1: a \\ in quotes"));
  CHECK(contains(read_file("data = \"\"\"a\"\"\"").problem, "line 1: three quotes"));
  CHECK(contains(read_file("data = '''\na'''").problem, "line 1: three quotes"));
  CHECK(contains(read_file("data = \"a").problem, "line 1: quotes that do not end"));
  CHECK(contains(read_file("data = \"a\"b\"").problem, "line 1: something stands right behind"));
  CHECK(contains(read_file("data = \"a").problem, "/job.toml: line 1"));
}

TEST_CASE("an option that stands in the file twice is refused with both lines",
          "[trainer][options]") {
  CHECK(contains(read_file("lr = 0.1\nsteps = 2\nlr = 0.01").problem,
                 "/job.toml: line 3: lr stands on line 1 already"));
  // CLI11 makes one list of lines beside each other.
  CHECK(contains(read_file("lr_milestones = [3]\nlr-milestones = [5]").problem,
                 "line 2: lr-milestones stands on line 1"));
  CHECK(contains(read_file("data = 'a'\n\ndata = 'b'").problem, "line 3: data stands on line 1"));
  CHECK(contains(read_file("\"lr\" = 1\nsteps = 2\nlr = 1").problem, "line 3: lr stands on"));
  CHECK(contains(read_file("overlap = true\nno-overlap = true").problem,
                 "/job.toml: overlap and no-overlap set the same"));
  CHECK(read_file("lr-milestones = [\n3,\n3e0\n]").problem.find("already") == std::string::npos);
  CHECK(contains(read_file("lr = 1\n[optimizer]\nlr = 2").problem, "it has no sections"));
  // On the command line the last one counts.
  CHECK(read_file("lr = 0.1", {"--lr", "1", "--lr", "2"}).options->learning_rate.base == 2);
}

TEST_CASE("an empty list is refused, whatever option it is for", "[trainer][options]") {
  std::ostringstream help;
  std::streambuf* const before = std::cout.rdbuf(help.rdbuf());
  CHECK(parse({"--help"}).exit_code == 0);
  std::cout.rdbuf(before);

  std::istringstream words(help.str());
  int options = 0;
  for (std::string word; words >> word;) {
    if (!word.starts_with("--") || word.size() < 4) continue;
    const std::string name =
        word.substr(2, word.find_first_not_of("abcdefghijklmnopqrstuvwxyz-0123456789", 2) - 2);
    for (const char* list : {" = []", " = [ ]"}) {
      const CommandLine command_line = read_file(name + list);
      INFO(name);
      CHECK_FALSE(command_line.options);
      CHECK(contains(command_line.problem, "/job.toml: " + name + " is an empty list"));
    }
    ++options;
  }
  CHECK(options > 50);
}

TEST_CASE("the command line wins over what cannot stand beside it", "[trainer][options]") {
  const auto batch = read_file("batch-size = 32", {"--global-batch-size", "10"}).options;
  REQUIRE(batch);
  CHECK_FALSE(batch->batch_size);
  CHECK(batch->global_batch_size == 10);
  const auto steps = read_file("lr_milestones = [3, 5]", {"--lr-step-epochs", "9"}).options;
  REQUIRE(steps);
  CHECK(steps->learning_rate.milestones.empty());
  CHECK(read_file("warmup-epochs = 3", {"--warmup-steps", "9"}).options);
  const std::string folder = "dataset = \"imagefolder\"\ndata = \".\"\n";
  const auto validated =
      read_file(folder + "no-validation = true", {"--val-resize-size", "40"}).options;
  REQUIRE(validated);
  CHECK(validated->validation);
  const auto trained = read_file(folder + "val-resize-size = 40", {"--no-validation"}).options;
  REQUIRE(trained);
  CHECK(trained->val_resize_size == 0);
  CHECK(contains(read_file(folder + "no-validation = true\nval-resize-size = 40").problem,
                 "--no-validation and --val-resize-size contradict"));

  CHECK(contains(read_file("batch-size = 32\nglobal-batch-size = 10").problem, "contradict"));
  const std::string mixed = read_file("sync-bn = true", {"--model", "convnet"}).problem;
  CHECK(contains(mixed, "--sync-bn has no meaning with --model convnet"));
  CHECK(contains(mixed, "Options stand in the file "));
  CHECK(contains(read_file("batch-size = x").problem, "Options stand in the file "));
}

TEST_CASE("a schedule on the command line takes the place of the file's", "[trainer][options]") {
  const auto rate_of = [](const std::string& text, std::vector<const char*> words) {
    const CommandLine command_line = read_file(text, std::move(words));
    INFO(text << ": " << command_line.problem);
    REQUIRE(command_line.options);
    return command_line.options->learning_rate;
  };
  const auto step = rate_of("lr-milestones = [1]", {"--lr-schedule", "step"});
  CHECK(step.milestones.empty());
  const auto cosine = rate_of("lr-milestones = [1]\nlr-gamma = 0.2", {"--lr-schedule", "cosine"});
  CHECK(cosine.schedule == LearningRateSchedule::Cosine);
  CHECK(cosine.milestones.empty());
  CHECK(rate_of("lr-step-epochs = 9", {"--lr-schedule", "cosine"}).step_epochs == 30);
  for (const char* schedule : {"cosine", "step"}) {
    const std::string file = std::string("lr-schedule = '") + schedule + "'";
    const auto rate = rate_of(file, {"--lr-milestones", "3,5"});
    CHECK(rate.schedule == LearningRateSchedule::Step);
    CHECK(rate.milestones == std::vector<std::int64_t>{3, 5});
  }
  CHECK(rate_of("lr-schedule = 'cosine'", {"--lr-step-epochs", "9"}).schedule ==
        LearningRateSchedule::Step);

  // What a schedule uses stays.
  CHECK(rate_of("lr-step-epochs = 9\nlr-gamma = 0.2", {"--lr-schedule", "step"}).step_epochs == 9);
  const auto several = rate_of("lr-milestones = [4]", {"--lr-schedule", "multistep"});
  CHECK(several.milestones == std::vector<std::int64_t>{4});
  CHECK(rate_of("lr-schedule = 'multistep'", {"--lr-milestones", "7"}).schedule ==
        LearningRateSchedule::MultiStep);
}

TEST_CASE("a file for training does for an evaluation and for other ways to begin, too",
          "[trainer][options]") {
  const CommandLine evaluation = read_file(
      "lr = 0.1\nlr-milestones = [30, 60]\nno-validation = true\nverify-sync = true\n"
      "max-time = '1h'\nprofile = 'trace'\nprofile-steps = '1:2'\nprofile-ops = true\n",
      {"--evaluate", "--weights", "w"});
  INFO(evaluation.problem);
  REQUIRE(evaluation.options);
  CHECK(evaluation.options->evaluate);
  CHECK(evaluation.options->validation);

  const auto shards = read_file("sync-bn = true\nmodel = 'resnet18'", {"--shards", "4"}).options;
  REQUIRE(shards);
  CHECK_FALSE(shards->sync_batch_norm);
  const auto from_checkpoint =
      read_file("weights = 'w'\nnew-head = true", {"--resume", "c.safetensors"}).options;
  REQUIRE(from_checkpoint);
  CHECK(from_checkpoint->weights.empty());
  const auto from_weights = read_file("resume = 'c.safetensors'", {"--weights", "w"}).options;
  REQUIRE(from_weights);
  CHECK(from_weights->resume == "auto");
  for (const char* beside : {"auto", "none"}) {
    CHECK(read_file("weights = 'w'", {"--resume", beside}).options->weights == "w");
    CHECK(read_file(std::string("resume = '") + beside + "'", {"--weights", "w"}).options->resume ==
          beside);
  }
  // What a training began with is not what it has trained.
  const std::string new_head = "weights = 'w'\nnew-head = true\ncheckpoint-dir = 'd'";
  const auto trained = read_file(new_head, {"--evaluate"}).options;
  REQUIRE(trained);
  CHECK(trained->weights.empty());
  CHECK_FALSE(trained->new_head);
  CHECK(trained->checkpoint_dir == "d");
  const auto named = read_file(new_head, {"--evaluate", "--weights", "best"}).options;
  REQUIRE(named);
  CHECK(named->weights == "best");
  CHECK_FALSE(named->new_head);
  const auto old_head = read_file("weights = 'w'\nnew-head = false", {"--evaluate"}).options;
  REQUIRE(old_head);
  CHECK(old_head->weights == "w");  // Nothing else is there.
  CHECK(read_file("weights = 'w'\ncheckpoint-dir = 'd'", {"--evaluate"}).options->weights.empty());
  CHECK(
      read_file("weights = 'w'", {"--evaluate", "--checkpoint-dir", "d"}).options->weights.empty());
  CHECK(read_file("weights = 'w'\ncheckpoint-dir = 'd'\nevaluate = true").options->weights == "w");
  CHECK(contains(read_file(new_head + "\nevaluate = true").problem, "nobody has trained"));
  CHECK(contains(read_file("weights = 'w'\nevaluate = true", {"--new-head"}).problem,
                 "nobody has trained"));
  CHECK(contains(read_file("weights = 'w'\nnew-head = true", {"--evaluate"}).problem,
                 "needs something to evaluate"));
  // What was to evaluate does not train.
  CHECK(contains(read_file("evaluate = true\nweights = 'w'", {"--no-validation"}).problem,
                 "contradict"));
}

TEST_CASE("an option that needs no number is true without one", "[trainer][options]") {
  const auto options = read_file("verify-sync = true\nscale-lr = true\noverlap = true").options;
  REQUIRE(options);
  CHECK(options->verify_sync == 0);
  REQUIRE(options->learning_rate.reference);
  CHECK(options->overlap);
  CHECK(read_file("verify-sync = 7").options->verify_sync == 7);
  CHECK_FALSE(read_file("no-overlap = true").options->overlap);
  CHECK_FALSE(read_file("overlap = false").options->overlap);
}
