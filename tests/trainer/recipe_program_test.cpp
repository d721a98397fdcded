// The recipe's options in `train` itself: equal to PyTorch, to a larger batch, and to a run that
// was never cut.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/testing/catch.h"
#include "tests/trainer/train_program.h"

using namespace ddprun::trainer;

namespace {

Result train(const std::string& arguments, const ScratchFolder& folder, int workers = 1) {
  return run_train(workers > 1 ? workers : 0, arguments, folder);
}

std::string synthetic(const ScratchFolder& folder, const std::string& more) {
  std::string text =
      "--dataset synthetic --synthetic-classes 10 --image-size 16 --print-freq 1 --workers 0 "
      "--device cpu --metrics ";
  text += in_quotes((folder / "metrics").string());
  text += " ";
  return text + more;
}

// Options of `train` by the names of oracle.py's recipes.
const std::vector<std::pair<std::string, std::string>> recipes{
    {"plain", "--lr 0.02 --batch-size 16"},
    {"rich",
     "--lr 0.05 --batch-size 16 --nesterov --no-decay bn,bias --label-smoothing 0.1 "
     "--clip-grad-norm 1 --lr-milestones 1,2 --lr-gamma 0.5 --warmup-steps 5"},
    {"accumulate", "--lr 0.02 --batch-size 6 --accumulate 3"},
    {"lars", "--lr 0.5 --batch-size 16 --optimizer lars --lars-trust 0.02"},
};

// The loss of the last validation.
double final_loss(const ScratchFolder& folder) {
  return events(folder / "metrics", "validation").back()["loss"].get<double>();
}

}  // namespace

TEST_CASE("thirty steps of every recipe have the losses of PyTorch, with one and two workers",
          "[trainer][program][recipe][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Python torch in .deps/peer");
  const ScratchFolder folder;
  const std::string data = folder.path().string();
  const int code = run_oracle("recipes " + mnist + " " + in_quotes(data), folder / "log");
  INFO(content_of(folder / "log"));
  REQUIRE(code == 0);
  const Json losses = Json::parse(content_of(folder / "losses"));
  for (const int workers : {1, 2}) {
    for (const auto& [name, options] : recipes) {
      const ScratchFolder run;
      std::string arguments = "--dataset mnist --model convnet --steps 30 --weight-decay 0.01 ";
      arguments += "--print-freq 1 --no-validation --device cpu --workers 0 --data ";
      arguments += in_quotes(data) + " --weights " + in_quotes(data + "/weights") + " --metrics ";
      arguments += in_quotes((run / "metrics").string()) + " ";
      const Result result = train(arguments + options, run, workers);
      INFO(name << ", " << workers << " workers: " << result.output);
      REQUIRE(result.code == 0);
      const auto steps = events(run / "metrics", "train");
      const Json& expected = losses[name + " " + std::to_string(workers)];
      REQUIRE(steps.size() == 30);
      REQUIRE(expected.size() == 30);
      for (std::size_t i = 0; i < 30; ++i) {
        INFO("step " << i + 1);
        const double loss = expected[i].get<double>();
        CHECK(std::abs(steps[i]["loss"].get<double>() - loss) / loss < 1e-3);
      }
      CHECK(steps[0].contains("grad_norm") == (name == "rich"));
    }
  }
}

// The last loss of an epoch of 88 images: five steps of 16 and one of 8. Not more, because noise as
// images and a high rate magnify rounding.
double loss_of_88(const std::string& options, int workers) {
  const ScratchFolder folder;
  const std::string common = "--synthetic-images 88 --model resnet20 --epochs 1 --lr 0.05 ";
  const Result result = train(synthetic(folder, common + options), folder, workers);
  INFO(result.output);
  REQUIRE(result.code == 0);
  return final_loss(folder);
}

TEST_CASE("with --sync-bn two workers train as one with the double batch",
          "[trainer][program][recipe][sync_bn]") {
  const double alone = loss_of_88("--batch-size 16", 1);
  const double synchronised = loss_of_88("--batch-size 8 --sync-bn --verify-sync 1", 2);
  const double separate = loss_of_88("--batch-size 8", 2);

  CHECK(std::abs(synchronised - alone) / alone < 5e-3);
  CHECK(std::abs(separate - alone) / alone > 5e-2);
}

TEST_CASE("with --sync-bn replicas and workers train as one with all their images",
          "[trainer][program][recipe][sync_bn]") {
  const double alone = loss_of_88("--batch-size 16", 1);
  const double replicas = loss_of_88("--batch-size 16 --data-parallel 2 --sync-bn", 1);
  const double both = loss_of_88("--batch-size 8 --data-parallel 2 --sync-bn --verify-sync 1", 2);

  CHECK(std::abs(replicas - alone) / alone < 5e-3);
  CHECK(std::abs(both - alone) / alone < 5e-3);
}

TEST_CASE("with --sync-bn a last batch of one image per worker can be trained on",
          "[trainer][program][recipe][sync_bn]") {
  const ScratchFolder folder;
  const std::string run =
      "--synthetic-images 18 --model resnet18 --stem imagenet --epochs 1 --batch-size 4 "
      "--no-validation ";
  const Result refused = train(synthetic(folder, run), folder, 2);
  CHECK(refused.code != 0);
  CHECK(contains(refused.output, "--sync-bn"));

  const Result trained = train(synthetic(folder, run + "--sync-bn"), folder, 2);
  INFO(trained.output);
  CHECK(trained.code == 0);
  CHECK(events(folder / "metrics", "train").size() == 3);
}

TEST_CASE("a cut run goes on with momentum, average and schedule as if it had not been cut",
          "[trainer][program][recipe]") {
  const ScratchFolder whole, cut;
  const std::string run =
      "--synthetic-images 100 --model resnet20 --batch-size 8 --accumulate 2 --epochs 2 --lr 2 "
      "--optimizer lars --lars-trust 0.01 --nesterov --lr-schedule cosine --warmup-epochs 1 "
      "--ema 0.8 --clip-grad-norm 5 --zero-init-residual --label-smoothing 0.1 ";
  const auto with_checkpoints = [&](const std::string& more) {
    return synthetic(cut, run + "--checkpoint-every 4 --checkpoint-dir " +
                              in_quotes((cut / "checkpoints").string()) + " " + more);
  };
  REQUIRE(train(synthetic(whole, run), whole).code == 0);
  // --steps would shorten the cosine, so a whole run's last checkpoint is taken away.
  REQUIRE(train(with_checkpoints("--verify-sync"), cut).code == 0);
  std::filesystem::remove(cut / "checkpoints/epoch_0002_step_0000014.safetensors");
  std::filesystem::remove(cut / "metrics");

  const Result resumed = train(with_checkpoints(""), cut);

  INFO(resumed.output);
  REQUIRE(resumed.code == 0);
  CHECK(contains(resumed.output, "resumed from"));
  const auto expected = events(whole / "metrics", "train");
  const auto found = events(cut / "metrics", "train");
  REQUIRE(expected.size() == 14);
  REQUIRE_FALSE(found.empty());
  REQUIRE(found.size() < 14);
  CHECK(found.back()["loss"] == expected.back()["loss"]);
  CHECK(found.back()["grad_norm"] == expected.back()["grad_norm"]);
  CHECK(events(cut / "metrics", "validation").back()["averaged"] == true);
  CHECK(final_loss(cut) == final_loss(whole));

  const Result other = train(with_checkpoints("--optimizer sgd --lars-trust 0.001"), cut);
  CHECK(other.code == 2);
  CHECK(contains(other.output, "--optimizer lars"));
}

TEST_CASE("with --ema the best weights are the averaged ones", "[trainer][program][recipe]") {
  const ScratchFolder folder;
  const std::string run = "--synthetic-images 64 --model convnet --batch-size 16 --lr 0.05 ";
  const std::string checkpoints = in_quotes((folder / "checkpoints").string());
  const Result result = train(
      synthetic(folder, run + "--epochs 1 --ema 0.5 --checkpoint-dir " + checkpoints), folder);
  INFO(result.output);
  REQUIRE(result.code == 0);
  CHECK(contains(result.output, " * EMA Prec@1"));
  const auto both = events(folder / "metrics", "validation");
  REQUIRE(both.size() == 2);
  CHECK_FALSE(both[0].contains("averaged"));
  CHECK(both[0]["loss"] != both[1]["loss"]);

  const std::string best = in_quotes((folder / "checkpoints/best.safetensors").string());
  REQUIRE(train(synthetic(folder, run + "--evaluate --weights " + best), folder).code == 0);

  CHECK(final_loss(folder) == both[1]["loss"].get<double>());
}

TEST_CASE("workers that agree say so, and the learning rate grows with them",
          "[trainer][program][recipe]") {
  const ScratchFolder folder;
  const Result result =
      train(synthetic(folder,
                      "--synthetic-images 64 --model resnet20 --batch-size 8 --steps 5 --lr 0.01 "
                      "--scale-lr --verify-sync 2 --no-validation"),
            folder, 2);
  INFO(result.output);
  REQUIRE(result.code == 0);
  CHECK(contains(result.output,
                 "All 2 workers hold equal models after step 5 (weights, momentum; not running "
                 "statistics, which are each worker's own without --sync-bn or --shards)"));
  REQUIRE(events(folder / "metrics", "verify_sync").size() == 1);
  CHECK(events(folder / "metrics", "verify_sync")[0]["running_statistics"] == false);
  CHECK(events(folder / "metrics", "train")[0]["lr"].get<double>() == Approx(0.02));
}

TEST_CASE("one image at a time can be evaluated, but not normalised in training",
          "[trainer][program][recipe]") {
  const ScratchFolder folder;
  const std::string run = "--synthetic-images 5 --model resnet20 --batch-size 1 --image-size 4 ";
  const Result refused = train(synthetic(folder, run + "--epochs 1"), folder);
  CHECK(refused.code == 2);
  CHECK(contains(refused.output, "one image per worker"));
  const std::string checkpoints =
      " --checkpoint-dir " + in_quotes((folder / "checkpoints").string());
  REQUIRE(train(synthetic(folder, run + "--batch-size 5 --epochs 1" + checkpoints), folder).code ==
          0);

  const Result evaluated = train(synthetic(folder, run + "--evaluate" + checkpoints), folder);

  INFO(evaluated.output);
  CHECK(evaluated.code == 0);
  CHECK(final_loss(folder) ==
        Approx(events(folder / "metrics", "validation")[0]["loss"].get<double>()).epsilon(1e-4));
}

TEST_CASE("a loss that is not a number ends the run at its step", "[trainer][program][recipe]") {
  const ScratchFolder folder;
  const std::string arguments =
      synthetic(folder,
                "--synthetic-images 64 --model resnet20 --batch-size 8 --epochs 1 --lr 1e30 "
                "--print-freq 1000");
  const Result result = run_train(0, arguments, folder, "TMPDIR=" + in_quotes(folder / ".") + " ");
  CHECK(result.code == 1);
  INFO(result.output);
  CHECK((contains(result.output, "at step 2 ") || contains(result.output, "at step 3 ")));
  // The eight samples of that step.
  const std::string mark = "they are listed in ";
  const std::size_t begin = result.output.find(mark);
  REQUIRE(begin != std::string::npos);
  const std::size_t path = begin + mark.size();
  const std::string file = result.output.substr(path, result.output.find('\n', path) - path);
  const std::string list = content_of(file);
  CHECK(std::count(list.begin(), list.end(), '\n') == 8);
}

TEST_CASE("with --power-sgd gradients travel whole at first, then as thin matrices",
          "[trainer][program][recipe]") {
  // Losses to all digits, with two workers; the first of them before anything has travelled.
  const std::string thin_recipe =
      "--synthetic-images 200 --model resnet20 --batch-size 8 --lr 0.05 --no-validation "
      "--verify-sync 2 ";
  const auto run = [&](const std::string& more, Result* result = nullptr) {
    const ScratchFolder folder;
    const Result ended = train(synthetic(folder, thin_recipe + "--steps 8 " + more), folder,
                               /*workers=*/2);
    INFO(ended.output);
    REQUIRE(ended.code == 0);
    CHECK(contains(ended.output, "All 2 workers hold equal models after step 8"));
    if (result != nullptr) *result = ended;
    return losses(folder / "metrics");
  };
  Result thin_run, whole_run;
  const auto plain = run("");
  const auto thin = run("--power-sgd 1 --power-sgd-start 3", &thin_run);
  CHECK(
      contains(thin_run.output, " % of 1.0 MiB of gradients travel in a step, all in the first 3"));
  for (std::size_t step = 0; step < 4; ++step) CHECK(thin[step] == plain[step]);
  CHECK(thin[4] != plain[4]);
  // A run that is cut goes on with what was left out: no step is another one.
  for (const std::string more :
       {"--power-sgd 1 --power-sgd-start 3", "--power-sgd 1 --power-sgd-start 6"}) {
    const auto kept = [&](const ScratchFolder& folder, int steps, int workers = 2) {
      const std::string saves = "--steps " + std::to_string(steps) +
                                " --checkpoint-every 5 --checkpoint-dir " +
                                in_quotes((folder / "run").string());
      const Result ended =
          train(synthetic(folder, thin_recipe + more + " " + saves), folder, workers);
      INFO(ended.output);
      REQUIRE(ended.code == 0);
      return ended.output;
    };
    const ScratchFolder uncut, cut;
    kept(uncut, 9);
    kept(cut, 5);
    CHECK_FALSE(contains(kept(cut, 9), "begins anew"));
    CHECK(losses(cut / "metrics") == losses(uncut / "metrics"));
  }
  // Of so many columns no matrix of this network gets thinner.
  CHECK(run("--power-sgd 300 --power-sgd-start 0", &whole_run) == plain);
  CHECK(contains(whole_run.output, "--power-sgd 300: no gradient of this model gets smaller so"));
}
