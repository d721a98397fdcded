// `train`, but it asks at each of its phases whether it may go on, and says what it holds: for
// benchmarks/phase_gate.py, which strikes a job at a named moment and compares its bits.
//
//   TRAIN_GATE=PATH   a Unix socket, which crosses network namespaces; TRAIN_HOST=NAME tells of
//   where
//   -> NAME LOCAL_RANK PID ATTEMPT RANK WORLD PHASE STEP HASH\n     <- one byte: go on
//
// A phase is "start" of the process, or one that TrainingJob::on_phase tells of. HASH is that of
// all that a checkpoint would hold, after a step's end ("report"), elsewhere 0.
//
// TRAIN_PLANT=twice | lost   in the first step after a recovery the optimizer is applied once more,
// or the last shard's gradient is left out, on all ranks alike: who proves recovery has to notice.
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/run_train.h"
#include "trainer/training_job.h"

using namespace ddprun::trainer;

namespace {

std::string variable(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

class Gate {
 public:
  explicit Gate(const std::string& path)
      : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) leave();
  }
  void pass(int attempt, int rank, int world, const std::string& phase, std::int64_t step,
            std::uint64_t hash) {
    const std::string line = fmt::format("{} {} {} {} {} {} {} {} {:x}\n", host_, local_rank_,
                                         ::getpid(), attempt, rank, world, phase, step, hash);
    char answer = 0;
    if (::send(socket_, line.data(), line.size(), MSG_NOSIGNAL) !=
            static_cast<ssize_t>(line.size()) ||
        ::recv(socket_, &answer, 1, 0) != 1) {
      leave();
    }
  }

 private:
  // Nobody watches the job any more: it is to end, and not to train on.
  [[noreturn]] static void leave() { std::_Exit(1); }

  const int socket_;
  const std::string host_ = variable("TRAIN_HOST", "0");
  const std::string local_rank_ = variable("LOCAL_RANK", "0");
};

// FNV-1a, eight bytes at a time, over names and values in the order of a checkpoint.
class Hash {
 public:
  void add(const void* data, std::size_t bytes) {
    const auto* at = static_cast<const char*>(data);
    for (std::uint64_t word = 0; bytes > 0; word = 0) {
      const std::size_t count = std::min(bytes, sizeof word);
      std::memcpy(&word, at, count);
      value_ = (value_ ^ word) * 0x100000001b3U;
      value_ ^= value_ >> 29;
      at += count, bytes -= count;
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

std::uint64_t hash_of_state(const TrainingJob& job) {
  Hash hash;
  const Safetensors all =
      make_checkpoint(job.identity, job.state, *job.model, job.checkpoint_parts);
  for (const auto& [name, tensor] : all.tensors) {
    const torch::Tensor values = tensor.detach().cpu().contiguous();
    hash.add(name.data(), name.size());
    hash.add(values.data_ptr(), values.nbytes());
  }
  return hash.value();
}

// What a recovery must never do, done once.
class Plant {
 public:
  void at(const TrainingJob& job, const std::string& begun) {
    if (what_.empty() || done_ || job.env.restart_count == 0) return;
    if (what_ == "twice" && begun == "report") {
      job.optimizer->step(0.1);
      done_ = true;
    }
    if (what_ == "lost") leave_out_last_shard(job, begun);
  }

 private:
  void leave_out_last_shard(const TrainingJob& job, const std::string& begun) {
    if (begun == "data") shard_ = job.own_replicas().first;
    if (begun == "backward" && shard_++ == job.plan.replicas - 1) {
      for (const torch::Tensor& parameter : job.model->parameters()) {
        hooks_.push_back({parameter, parameter.register_hook([](const torch::Tensor& gradient) {
                            return torch::zeros_like(gradient);
                          })});
      }
    }
    if (begun != "optimizer") return;
    for (auto& [parameter, hook] : hooks_) parameter.remove_hook(hook);
    hooks_.clear();
    done_ = true;
  }

  const std::string what_ = variable("TRAIN_PLANT", "");
  bool done_ = false;
  int shard_ = 0;
  std::vector<std::pair<torch::Tensor, unsigned>> hooks_;
};

}  // namespace

int main(int argc, char** argv) {
  Gate gate(variable("TRAIN_GATE", ""));
  Plant plant;
  const std::string rank = variable("RANK", "0");
  if (rank != "spare") {
    gate.pass(std::atoi(variable("TORCHELASTIC_RESTART_COUNT", "0").c_str()),
              std::atoi(rank.c_str()), std::atoi(variable("WORLD_SIZE", "1").c_str()), "start", -1,
              0);
  }
  return run_train(argc, argv, [&](const TrainingJob& job, const std::string& begun) {
    plant.at(job, begun);
    gate.pass(job.env.restart_count, job.env.rank, job.env.world_size, begun, job.state.step,
              begun == "report" ? hash_of_state(job) : 0);
  });
}
