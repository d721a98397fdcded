// The same training, started by each launcher that people use: the weights must be the same.
// mpirun: mpi_test.cpp. Slurm is played by fake_srun, which sets srun's variables.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "tests/end_to_end/small_training.h"
#include "tests/testing/catch.h"

using namespace ddprun::testing;

namespace {

constexpr auto limit = 150s;
const std::string python = DDPRUN_SOURCE_DIR "/.deps/peer/bin/python";
constexpr const char* no_torch = "no Python torch in .deps/peer (scripts/setup --peer installs it)";
const std::string fake_srun = DDPRUN_SOURCE_DIR "/tests/end_to_end/fake_srun";

std::vector<std::string> training(const std::string& folder,
                                  const std::vector<std::string>& more = {}) {
  return small_training({"--steps", "4", "--checkpoint-dir", folder}) + more;
}

// What a run with these words before it comes to; "" when it failed.
std::string weights_of(const std::vector<std::string>& launcher, const std::string& folder,
                       const std::vector<std::string>& more = {},
                       std::map<std::string, std::string> variables = {}) {
  variables.merge(std::map<std::string, std::string>(one_thread));
  const auto result = run(launcher + training(folder, more), limit, variables);
  INFO(result.output);
  CHECK(result.status == 0);
  return result.status == 0 ? newest_tensors(folder) : "";
}

std::string expected_weights(const std::string& folder) {
  return weights_of(launch({"--standalone", "--nproc-per-node", "2"}), folder);
}

// A folder with `srun` in it, first on PATH.
std::map<std::string, std::string> with_fake_slurm(const TemporaryFolder& folder) {
  const std::string bin = folder / "bin";
  std::filesystem::create_directory(bin);
  std::filesystem::create_symlink(fake_srun, bin + "/srun");
  std::string path = bin;
  path.append(":").append(std::getenv("PATH"));
  return {{"PATH", path},
          {"TRAIN", binary("train")},
          {"DDPRUN", binary("ddprun")},
          {"MEET_FOLDER", folder.path()},
          {"OMP_NUM_THREADS", "1"}};
}

// The command line that runs one of scripts/ from the root of the tree, as their heads say.
std::vector<std::string> example(const std::string& name) {
  return {"/bin/sh", "-c", "cd '" DDPRUN_SOURCE_DIR "' && exec /bin/bash \"$0\" \"$@\"",
          "scripts/" + name};
}

// The options of a small run after those of an example script, over which they win.
std::vector<std::string> small_options(const std::string& folder) {
  auto options = training(folder, {"--data", "", "--checkpoint-every", "1000"});
  options.erase(options.begin());
  return options;
}

}  // namespace

TEST_CASE("torchrun and torch.distributed.launch start train as ddprun does") {
  if (::access(python.c_str(), X_OK) != 0) DDPRUN_SKIP(no_torch);
  TemporaryFolder folder;
  const std::string expected = expected_weights(folder / "ddprun");
  for (const char* module : {"torch.distributed.run", "torch.distributed.launch"}) {
    std::vector<std::string> launcher = {
        python, "-m",          module,          "--nproc-per-node",
        "2",    "--no-python", "--master-port", std::to_string(free_port())};
    if (contains(module, "launch")) launcher.push_back("--use-env");  // It insists.
    const bool same_weights = weights_of(launcher, folder / module) == expected;
    INFO(module);
    CHECK(same_weights);
  }
}

TEST_CASE("srun starts train by its variables, with an address and with a file") {
  TemporaryFolder folder;
  const std::string expected = expected_weights(folder / "ddprun");
  const std::vector<std::string> srun = {fake_srun, "-n", "2"};
  const auto by_variables =
      weights_of(srun, folder / "env", {},
                 {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(free_port())}});
  const auto by_file =
      weights_of(srun, folder / "file", {"--init-method", "file://" + (folder / "meet")});
  const bool same_weights = by_variables == expected && by_file == expected;
  CHECK(same_weights);
}

TEST_CASE("the example for srun without a launcher trains") {
  TemporaryFolder folder;
  auto variables = with_fake_slurm(folder);
  variables.insert({{"SLURM_JOB_ID", "4711"}, {"SLURM_NTASKS", "2"}});
  const auto result =
      run(example("workers.sbatch") + small_options(folder / "run"), limit, variables);
  INFO(result.output);
  REQUIRE(result.status == 0);
  CHECK(contains(result.output, "cpu: 2 ranks on 1 host"));
  const bool same_weights = newest_tensors(folder / "run") == expected_weights(folder / "ddprun");
  CHECK(same_weights);
}

TEST_CASE("the example for a job array trains, whichever element starts first") {
  TemporaryFolder folder;
  const auto slurm = with_fake_slurm(folder);
  std::vector<std::unique_ptr<Process>> elements;
  for (const int element : {9, 7}) {
    auto variables = slurm;
    variables.insert({{"SLURM_JOB_ID", std::to_string(5000 + element)},
                      {"SLURM_PROCID", "0"},
                      {"SLURM_NTASKS", "1"},
                      {"SLURM_ARRAY_JOB_ID", "5000"},
                      {"SLURM_ARRAY_TASK_ID", std::to_string(element)},
                      {"SLURM_ARRAY_TASK_MIN", "7"},
                      {"SLURM_ARRAY_TASK_MAX", "9"},
                      {"SLURM_ARRAY_TASK_STEP", "2"},
                      {"SLURM_ARRAY_TASK_COUNT", "2"}});
    elements.push_back(std::make_unique<Process>(
        example("array.sbatch") + small_options(folder / "run"), variables));
  }
  for (auto& element : elements) {
    const auto result = element->wait(limit);
    INFO(result.output);
    REQUIRE(result.status == 0);
  }
  const bool same_weights = newest_tensors(folder / "run") == expected_weights(folder / "ddprun");
  CHECK(same_weights);
}

TEST_CASE("a job array of numbers with gaps is refused, since no element knows its rank") {
  TemporaryFolder folder;
  const auto result = run(example("array.sbatch"), limit,
                          {{"TRAIN", "/bin/true"},
                           {"MEET_FOLDER", folder.path()},
                           {"SLURM_ARRAY_JOB_ID", "5000"},
                           {"SLURM_ARRAY_TASK_ID", "3"},
                           {"SLURM_ARRAY_TASK_MIN", "1"},
                           {"SLURM_ARRAY_TASK_MAX", "4"},
                           {"SLURM_ARRAY_TASK_STEP", "1"},
                           {"SLURM_ARRAY_TASK_COUNT", "3"}});  // --array=1,3,4
  INFO(result.output);
  CHECK(result.status == 2);
  CHECK(contains(result.output, "no element knows its rank"));
}

TEST_CASE("an element of a job array takes all GPUs, in whichever form Slurm counts them") {
  TemporaryFolder folder;
  const std::string shown = folder / "train";  // Shows what it would be started with.
  std::ofstream(shown) << "#!/bin/sh\necho \"$@\"\n";
  std::filesystem::permissions(shown, std::filesystem::perms::owner_all);
  using Variables = std::map<std::string, std::string>;
  const std::vector<std::pair<Variables, std::string>> forms = {
      {{}, ""},
      {{{"SLURM_GPUS", "1"}}, ""},
      {{{"SLURM_GPUS", "4"}}, "4"},
      {{{"SLURM_GPUS", "a100:2"}}, "2"},
      {{{"SLURM_GPUS", "a100:1,v100:2"}}, "3"},
      {{{"SLURM_GPUS", "a100"}}, ""},
      {{{"SLURM_GPUS_PER_TASK", "h100:8"}}, "8"},
      {{{"SLURM_GPUS_PER_NODE", "gpu:a100:2"}}, "2"},
      {{{"SLURM_GPUS_ON_NODE", "2"}}, "2"},  // All that --gres=gpu:a100:2 says.
      {{{"SLURM_JOB_GPUS", "0,1,3"}}, "3"},  // All that it says before Slurm 19.05.
      {{{"SLURM_JOB_GPUS", "3"}}, ""},
  };
  for (auto [variables, count] : forms) {
    INFO((variables.empty() ? "" : variables.begin()->first + "=" + variables.begin()->second));
    variables.insert({{"TRAIN", shown},
                      {"MEET_FOLDER", folder.path()},
                      {"SLURM_ARRAY_JOB_ID", "5000"},
                      {"SLURM_ARRAY_TASK_ID", "0"},
                      {"SLURM_ARRAY_TASK_MIN", "0"},
                      {"SLURM_ARRAY_TASK_MAX", "0"},
                      {"SLURM_ARRAY_TASK_COUNT", "1"}});
    const auto result = run(example("array.sbatch"), limit, variables);
    INFO(result.output);
    CHECK(result.status == 0);
    CHECK(contains(result.output, "--data-parallel") == !count.empty());
    CHECK((count.empty() || contains(result.output, "--data-parallel " + count + " ")));
  }
}

TEST_CASE("the example for one launcher on each node trains and needs no other address") {
  TemporaryFolder folder;
  auto variables = with_fake_slurm(folder);
  variables.insert({{"SLURM_JOB_ID", "4711"},
                    {"MASTER_PORT", std::to_string(free_port())},
                    {"SLURM_NTASKS", "2"},
                    {"SLURM_NNODES", "2"},
                    {"FAKE_NODE_PER_TASK", "1"},
                    {"MASTER_ADDR", "127.0.0.1"},
                    {"NPROC", "1"}});
  const auto result = run(example("node.sbatch") + small_options(folder / "run"), limit, variables);
  INFO(result.output);
  REQUIRE(result.status == 0);
  const bool same_weights = newest_tensors(folder / "run") == expected_weights(folder / "ddprun");
  CHECK(same_weights);
}
