// What the user gave wrong is told once, and does not use up the restarts.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/end_to_end/small_training.h"
#include "tests/testing/catch.h"

using namespace ddprun::testing;

namespace {

constexpr auto limit = 120s;

struct EndedJob {
  ProcessResult result;
  nlohmann::json report;
};

EndedJob run_job(const TemporaryFolder& folder, const std::vector<std::string>& program) {
  const std::string report = folder / "report";
  EndedJob job{run(launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "2",
                           "--restart-backoff", "0", "--report", report}) +
                       program,
                   limit),
               {}};
  INFO(job.result.output);
  job.report = nlohmann::json::parse(content_of(report));
  return job;
}

// A checkpoint of another model.
std::string saved_elsewhere(const TemporaryFolder& folder) {
  const auto saved = run(small_training({"--model", "convnet", "--image-size", "16", "--steps", "1",
                                         "--checkpoint-dir", folder / "other"}),
                         limit);
  INFO(saved.output);
  REQUIRE(saved.status == 0);
  return folder / "other/last.safetensors";
}

// Without what another rank, which was not stopped at once, heard from the one that tells it.
int times_told(const std::string& output, const std::string& part) {
  int count = 0;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (contains(line, part) && !contains(line, " failed on rank ")) ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("17.1: what the user gave train wrong ends the job at once, whatever restarts are left") {
  const TemporaryFolder folder;
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong{
      {{binary("train"), "--no-such-option"}, "unknown option --no-such-option"},
      {{binary("train"), "--dataset", "mnist", "--data", folder / "none"}, folder / "none"},
      {small_training({"--batch-size", "1000000"}), "is larger than the data"},
      {small_training({"--resume", folder / "none"}), "--resume: cannot read"},
      {small_training({"--model", "convnet", "--image-size", "15"}), "at least 16 pixels"},
      {small_training({"--resume", saved_elsewhere(folder)}), "of another run"}};
  for (const auto& [command, told] : wrong) {
    const EndedJob job = run_job(folder, command);
    INFO(job.result.output);
    CHECK(job.result.status == 2);
    CHECK(job.report["attempts"] == 1);
    CHECK(job.report["first_cause"]["usage_error"] == true);
    CHECK(contains(job.report["first_cause"]["advice"], "start the job again"));
    CHECK(times_told(job.result.output, told) == 1);
    CHECK(contains(job.result.output, "the job ends with 2 restarts left"));
  }
}

TEST_CASE("17.1: what another attempt may find otherwise is restarted") {
  const TemporaryFolder folder;
  // A list that opens, and reads as a file server that is away.
  const std::vector<std::string> unread{binary("train"), "--dataset",      "csv",
                                        "--data",        "/proc/self/mem", "--no-validation"};
  const std::vector<std::pair<std::vector<std::string>, int>> commands{
      {shell("exit 2"), 2}, {small_training({"--profile", "/proc/none"}), 2}, {unread, 1}};
  for (const auto& [command, status] : commands) {
    const EndedJob job = run_job(folder, command);
    INFO(job.result.output);
    CHECK(job.result.status == status);
    CHECK(job.report["attempts"] == 3);
    CHECK(job.report["first_cause"]["usage_error"] == false);
  }
}

TEST_CASE(
    "what the user gave train wrong is told where no file can be written, as on a full disk") {
  const TemporaryFolder folder;
  const std::string none = folder / "none";
  const EndedJob job = run_job(
      folder, shell("ulimit -f 0; exec " + binary("train") + " --dataset mnist --data " + none));

  INFO(job.result.output);
  CHECK(job.result.status == 2);
  CHECK(times_told(job.result.output, none) >= 1);
}

TEST_CASE("17.1: from the second attempt on a job does not end for what one worker was given") {
  const TemporaryFolder folder;
  // As a file of options that somebody has just changed, or a node that came with another command.
  const EndedJob job =
      run_job(folder, shell("[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 1; exec " +
                            binary("train") + " --no-such-option"));

  INFO(job.result.output);
  CHECK(job.report["attempts"] == 3);
  CHECK(job.report["first_cause"]["usage_error"] == true);
}

TEST_CASE("what would overwrite later checkpoints is refused for good") {
  const TemporaryFolder folder;
  const std::string kept = folder / "kept";
  const std::vector<std::string> every_step{"--checkpoint-dir",   kept, "--checkpoint-every", "1",
                                            "--keep-checkpoints", "9"};
  const auto saved = run(small_training({"--steps", "3"}) + every_step, limit);
  INFO(saved.output);
  REQUIRE(saved.status == 0);
  const std::string first = folder / "first.safetensors";
  std::filesystem::copy_file(kept + "/epoch_0000_step_0000001.safetensors", first);
  const auto files = [&] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(kept)) {
      names.insert(entry.path().filename());
    }
    return names;
  };
  const auto before = files();

  for (const std::string& resume : {std::string("none"), first}) {
    const EndedJob job = run_job(
        folder, small_training({"--steps", "5", "--resume", resume, "--checkpoint-dir", kept}));
    INFO(job.result.output);
    CHECK(job.result.status == 2);
    CHECK(job.report["attempts"] == 1);
    CHECK(contains(job.result.output, "would overwrite later checkpoints"));
    CHECK(files() == before);
  }
}

TEST_CASE("a folder that another training holds is not taken by a later attempt that begins anew") {
  const TemporaryFolder folder;
  const std::string held = folder / "held";
  REQUIRE(std::filesystem::create_directory(held));
  const int lock = ::open(held.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  REQUIRE(::flock(lock, LOCK_EX | LOCK_NB) == 0);

  const EndedJob job = run_job(
      folder, small_training({"--steps", "1", "--resume", "none", "--checkpoint-dir", held}));
  ::close(lock);

  INFO(job.result.output);
  CHECK(job.result.status == 2);
  CHECK(job.report["attempts"] == 1);
}

TEST_CASE("a module that another user has put beside train is refused") {
  if (::geteuid() != 0) DDPRUN_SKIP("to give a file away one must be root");
  const TemporaryFolder anybodys;
  std::filesystem::copy_file(binary("train"), anybodys / "train");
  const std::string module = anybodys / "libddprun_mpi.so";
  std::ofstream(module) << "theirs";
  REQUIRE(::chown(module.c_str(), 54'321, 54'321) == 0);
  REQUIRE(::chmod(anybodys.path().c_str(), 01777) == 0);
  auto command = small_training({"--steps", "1", "--backend", "mpi"});
  command[0] = anybodys / "train";

  const auto refused = run(command, limit);

  INFO(refused.output);
  CHECK(refused.status != 0);
  CHECK(contains(refused.output, "the MPI module " + module + " is another user's"));
}
