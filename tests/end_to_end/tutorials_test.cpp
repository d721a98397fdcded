// The jobs of five public tutorials on distributed training, small: each row of README's table.
#include <fstream>
#include <memory>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/end_to_end/small_training.h"
#include "tests/testing/catch.h"
#include "tests/trainer/data/made_up_sets.h"

using namespace ddprun::testing;

namespace {

constexpr auto limit = 240s;
const std::string mnist = DDPRUN_SOURCE_DIR "/data/mnist";

using Arguments = std::vector<std::string>;

void write_stl10(const std::string& folder, std::uint32_t images) {
  std::filesystem::create_directories(folder);
  for (const bool part : {true, false}) ddprun::trainer::write_stl10(folder, part, images);
  std::ofstream(folder + "/class_names.txt")
      << "airplane\nbird\ncar\ncat\ndeer\ndog\nhorse\nmonkey\nship\ntruck\n";
}

// All of them at the same time; each must succeed. The output of the first.
std::string run_together(const std::vector<Arguments>& commands) {
  std::vector<std::unique_ptr<Process>> processes;
  for (const Arguments& command : commands) {
    processes.push_back(std::make_unique<Process>(command, one_thread));
  }
  std::string first;
  for (auto& process : processes) {
    const ProcessResult result = process->wait(limit);
    INFO(result.output);
    REQUIRE(result.status == 0);
    if (first.empty()) first = result.output;
  }
  return first;
}

std::string run_alone(const Arguments& command) { return run_together({command}); }

}  // namespace

TEST_CASE("tutorial: PyTorch on AWS, ResNet-18 on STL-10 with two nodes of two processes") {
  const TemporaryFolder folder;
  write_stl10(folder / "stl10", 24);
  const Arguments train =
      Arguments{binary("train"),    "--data",           folder / "stl10",      "--metrics",
                folder / "metrics", "--checkpoint-dir", folder / "checkpoints"} +
      words_of(
          "--dataset stl10 --image-size 72 --model resnet18 --batch-size 3 --epochs 2 "
          "--lr-step-epochs 1 --device cpu --print-freq 1");
  const std::uint16_t port = free_port();
  const std::string output = run_together({launch_node(0, port, {"--nproc_per_node", "2"}, train),
                                           launch_node(1, port, {"--nproc_per_node", "2"}, train)});

  CHECK(contains(output, "(the full set has 5000)"));
  CHECK(contains(output, "Epoch: [2][2/2]\tTime"));
  CHECK(contains(output, "Prec@1"));
  CHECK(contains(output, "Prec@5"));
  CHECK(count_of(content_of(folder / "metrics"), "\"validation\"") == 2);
  CHECK(contains(content_of(folder / "metrics"), "\"lr\":0.1,"));
  CHECK(contains(content_of(folder / "metrics"),
                 "\"lr\":0.01"));  // Divided by 10 after an epoch here.
  CHECK(std::filesystem::exists(folder / "checkpoints/best.safetensors"));
}

TEST_CASE("tutorial: PyTorch on AWS, the same started by hand over tcp, a file and variables") {
  const TemporaryFolder folder;
  write_stl10(folder / "stl10", 8);
  for (const std::string& url : {"tcp://127.0.0.1:" + std::to_string(free_port()),
                                 "file://" + (folder / "meet"), std::string("env://")}) {
    const std::string port = "MASTER_PORT=" + std::to_string(free_port());
    std::vector<Arguments> workers;
    for (const std::string rank : {"0", "1"}) {
      workers.push_back(
          Arguments{"/usr/bin/env", "MASTER_ADDR=127.0.0.1", port, binary("train"), "--init-method",
                    url, "--rank", rank, "--world-size", "2", "--data", folder / "stl10"} +
          words_of("--dataset stl10 --image-size 64 --model resnet18 --batch-size 4 --epochs 1 "
                   "--device cpu"));
    }
    CHECK(contains(run_together(workers), "Done: 1 step"));
  }
}

TEST_CASE("tutorial: Oracle, one process with replicas or several workers, by a file of options") {
  const TemporaryFolder folder;
  std::ofstream(folder / "job.toml") << "dataset = \"mnist\"\ndata = \"" << mnist
                                     << "\"\nmodel = \"resnet20\"\nsteps = 2\n"
                                        "batch-size = 64\nprecision = \"bf16\"\n"
                                        "no-validation = true\ndevice = \"cpu\"\n";
  const Arguments train{binary("train"), "-c", folder / "job.toml"};

  const std::string replicas =
      run_alone(train + Arguments{"--data-parallel", "2", "--metrics", folder / "dp"});
  const std::string workers =
      run_alone(launch({"--standalone", "--nproc-per-node", "2"}) + train +
                Arguments{"--batch-size", "32", "--metrics", folder / "ddp"});

  CHECK(contains(content_of(folder / "dp"), "\"replicas\":2"));
  CHECK(contains(content_of(folder / "dp"), "\"precision\":\"bf16\""));
  CHECK(contains(content_of(folder / "ddp"), "\"world_size\":2"));
  CHECK(contains(content_of(folder / "ddp"), "\"global_batch_size\":64"));  // The command line won.
  CHECK(contains(replicas, "Done: 2 steps"));
  CHECK(contains(replicas, "on cpu with 2 replicas in each worker"));  // 14.23
  CHECK(contains(workers, "Done: 2 steps"));
}

TEST_CASE("tutorial: Lambda, a deep ResNet with a batch of the job, and the time of its steps") {
  const Arguments train =
      Arguments{binary("train")} +
      words_of(
          "--dataset synthetic --synthetic-images 64 --image-size 32 --model resnet50 --steps 2 "
          "--device cpu --print-all-ranks --no-validation");
  const std::string output = run_alone(launch({"--standalone", "--nproc-per-node", "2"}) + train +
                                       Arguments{"--global-batch-size", "16"});
  CHECK(contains(output, "2 x 8 = 16"));
  CHECK(contains(output, "2 steps per worker of "));
  for (const std::string rank : {"0", "1"}) {  // 14.24
    CHECK(contains(output, "[rank " + rank + "] Epoch: [1][1/"));
  }
}

TEST_CASE("tutorial: MNIST by hand, a ConvNet with the learning rate times the workers") {
  const TemporaryFolder folder;
  std::vector<Arguments> workers;
  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  for (const std::string rank : {"0", "1"}) {
    workers.push_back(
        Arguments{binary("train"), "--init-method", url, "--rank", rank, "--world-size", "2",
                  "--data", mnist, "--metrics", folder / "metrics"} +
        words_of("--dataset mnist --model convnet-large --batch-size 100 --steps 20 --lr 0.01 "
                 "--scale-lr --print-freq 10 --device cpu"));
  }
  const std::string output = run_together(workers);
  CHECK(contains(output, "trained on 4000 images in "));
  CHECK(contains(output, "\nTest: [ 1/"));  // 14.24: as PyTorch's example shows a validation.
  CHECK(contains(output, "\nTest: [10/"));
  CHECK(contains(output, "Epoch: [1][ 1/20]"));
  CHECK(contains(content_of(folder / "metrics"), "\"parameters\":28938,"));
  CHECK(contains(content_of(folder / "metrics"), "\"lr\":0.02,"));
}

TEST_CASE("tutorial: Slurm cluster, workers with two devices meet in a file and stay equal") {
  const TemporaryFolder folder;
  const auto workers = [&](const Arguments& more) {
    std::vector<Arguments> commands;
    for (const std::string rank : {"0", "1"}) {
      commands.push_back(
          Arguments{binary("train"), "--init-method", "file://" + (folder / "meet"), "--rank", rank,
                    "--world-size", "2", "--data", mnist} +
          words_of("--dataset mnist --model resnet20 --batch-size 16 --steps 3 --device cpu "
                   "--no-validation --verify-sync 1") +
          more);
    }
    return run_together(commands);
  };
  const std::string equal = "All 2 workers hold equal models after step 3";
  CHECK(contains(workers({"--data-parallel", "2"}), equal));
  CHECK(contains(workers({"--sync-bn"}), equal));
}
