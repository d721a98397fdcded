// What a rank keeps, and what it asks of its peers, when one of them is gone or a loss is no
// number: over a communicator that is as NCCL's, whose lost sums look like sums until wait() is
// called.
#include <sys/mman.h>
#include <unistd.h>

#include <sstream>

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"
#include "tests/worker/torch/thread_communicator.h"
#include "trainer/gpu_memory.h"
#include "trainer/models/model_zoo.h"
#include "trainer/replicated_classifier.h"
#include "trainer/training_job.h"
#include "worker/torch/distributed_data_parallel.h"
#include "worker/torch/sync_batch_norm.h"

using namespace ddprun;
using namespace ddprun::trainer;

namespace {

class WithLostSums : public worker::ThreadCommunicator {
 public:
  using ThreadCommunicator::ThreadCommunicator;

  void wait(worker::Stream /*stream*/) override {
    ++waits;
    if (lost) throw worker::CommunicatorError("rank 1 is gone");
  }

  bool lost = false;
  int waits = 0;
};

// Rank 0's of two, that saves into a folder.
struct SavingJob {
  SavingJob() {
    job.env.world_size = 2;
    auto owned = std::make_unique<WithLostSums>(world, 0);
    peers = owned.get();
    job.place.communicator = std::move(owned);
    job.model =
        make_model({.name = "convnet", .input_channels = 1, .image_size = 16, .classes = 2});
    job.reporter = std::make_unique<Reporter>(told, Reporter::Options{});
    job.folder.emplace(folder / "checkpoints");
    job.writer = std::make_unique<CheckpointWriter>(&*job.folder, 0, torch::kCPU);
  }

  void step() {
    job.begin_step();
    job.state.step += 1;
  }

  std::int64_t newest_saved() {
    job.finish_checkpoints();
    const auto all = job.folder->list();
    return all.empty() ? -1 : all.back().step;
  }

  worker::ThreadWorld world{2};
  ScratchFolder folder;
  std::ostringstream told;
  WithLostSums* peers = nullptr;
  TrainingJob job;
};

// As a launcher has it for its workers.
std::unique_ptr<SnapshotMemory> new_snapshots() {
  const int fd = ::memfd_create("test", MFD_CLOEXEC);
  REQUIRE(::ftruncate(fd, 16 << 20) == 0);
  auto memory = worker::RestartMemory::map(fd);
  ::close(fd);
  return std::make_unique<SnapshotMemory>(std::move(*memory));
}

}  // namespace

TEST_CASE("no checkpoint is made of a step whose sums a lost peer has ended", "[trainer][lost]") {
  SavingJob saving;
  TrainingJob& job = saving.job;
  saving.step();
  job.save_checkpoint();
  CHECK(saving.newest_saved() == 1);
  saving.step();
  saving.peers->lost = true;
  CHECK_THROWS_AS(job.save_snapshot(), worker::CommunicatorError);
  CHECK_THROWS_AS(job.save_checkpoint(), worker::CommunicatorError);
  CHECK(saving.newest_saved() == 1);
}

TEST_CASE("a step that was whole before the peer was lost is kept", "[trainer][lost]") {
  SavingJob saving;
  TrainingJob& job = saving.job;
  saving.step();
  job.wait_for_step();
  saving.peers->lost = true;  // In validation.
  job.save_checkpoint();
  CHECK(saving.newest_saved() == 1);
  CHECK(saving.peers->waits == 1);
}

TEST_CASE("a disk that fails hides neither that weights are ruined nor why training ended",
          "[trainer][lost]") {
  for (const bool in_memory : {true, false}) {
    INFO((in_memory ? "with" : "without") << " snapshots");
    SavingJob saving;
    TrainingJob& job = saving.job;
    saving.step();
    if (in_memory) {
      job.snapshots = new_snapshots();
      job.snapshots->keep(make_checkpoint(job.identity, job.state, *job.model, {}));
      REQUIRE(job.snapshots->read("memory").size() == 1);
    }
    std::filesystem::remove_all(saving.folder / "checkpoints");
    job.note_accuracy(50);
    job.save_checkpoint();  // With the best weights, for which the folder is listed first.

    CHECK_NOTHROW(job.take_back_ruined(/*bad_step=*/2));
    if (!in_memory) continue;
    CHECK(job.snapshots->is_ruined());
    CHECK(job.snapshots->read("memory").empty());
  }
}

TEST_CASE("a ruined checkpoint whose write failed after its renaming is taken back",
          "[trainer][lost]") {
  SavingJob saving;
  TrainingJob& job = saving.job;
  saving.step();
  std::filesystem::create_directory(saving.folder / "checkpoints/manifest.json.partial");
  job.save_checkpoint();
  REQUIRE_FALSE(job.writer->settle());
  REQUIRE(job.folder->list().size() == 1);
  const auto path = job.folder->path_of(job.folder->list().front());

  job.take_back_ruined(/*bad_step=*/2);
  CHECK(job.folder->list().empty());
  CHECK(std::filesystem::exists(path.string() + ".corrupt"));
}

TEST_CASE("while the best weights are written as good ones are no better", "[trainer][lost]") {
  SavingJob saving;
  TrainingJob& job = saving.job;
  saving.step();
  CHECK(job.note_accuracy(50));
  job.save_checkpoint();  // A checkpoint first: there is no file of the best for a while.
  CHECK_FALSE(job.note_accuracy(50));

  std::filesystem::remove(saving.folder / "checkpoints/best.safetensors");
  CHECK(job.note_accuracy(50));
}

TEST_CASE("the look for a batch that fits calls no peer", "[trainer][lost]") {
  for (const std::size_t replicas : {1, 2}) {
    INFO(replicas << " replicas");
    worker::ThreadWorld both(2), own(1);  // Whoever calls the peer of `both` waits in vain.
    WithLostSums peers(both, 0), alone(own, 0);
    TrainingJob job;
    job.options.sync_batch_norm = true;
    job.plan.micro_batch_size = 4;
    const auto new_model = [] {
      return make_model({.name = "resnet20", .input_channels = 3, .image_size = 32, .classes = 2});
    };
    job.model = new_model();
    std::shared_ptr<ImageClassifier> network = job.model;
    const worker::BatchNormGroup group{worker::reduction_queue_of(peers, torch::kCPU), 0, 2};
    if (replicas == 1) {
      worker::synchronize_batch_norms(*job.model, group);
    } else {
      auto replicated = std::make_shared<ReplicatedClassifier>(
          job.model, std::vector<torch::Device>(replicas, torch::kCPU), new_model);
      replicated->synchronize_batch_norms(group);
      network = replicated;
    }
    job.parallel = std::make_unique<worker::DistributedDataParallel<ImageClassifier>>(
        network, alone, worker::DataParallelOptions{});
    const torch::Tensor images = torch::zeros({4, 3, 32, 32});
    explain_out_of_memory(job, images, torch::zeros({4}, torch::kInt64), "no memory");
    // As its probes, which a CPU's allocator does not measure.
    const worker::DistributedDataParallelBase::NoSync local(*job.parallel);
    network->forward(images).sum().backward();
    CHECK(both.reductions == 0);
  }
}
