// --profile: a trace of some training steps of this rank, written to DIR/rank_N.json.
//
//   training       |data wait|forward |backward      [wait for gradients]|optimizer| ...
//   communication                         |all_reduce| |all_reduce        |
//
// Spans of the host are times of the call: on a GPU that is until the work is queued. There, two
// more tracks show when the GPU carried out the phases and the collectives.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "trainer/profile/device_spans.h"
#include "trainer/profile/profile_window.h"
#include "trainer/profile/span_recorder.h"
#include "worker/torch/libtorch.h"
#include "worker/torch/reduction_queue.h"
#include "worker/tracing_communicator.h"
#include "worker/worker_env.h"

namespace ddprun::trainer {

// All but the observer's functions are called by the thread that trains.
class Profiler : public worker::CollectiveTracer {
 public:
  struct Options {
    std::filesystem::path folder;
    ProfileWindow window;
    bool operations = false;  // LibTorch's operations too.
    torch::Device device{torch::kCPU};
    // For people, where this rank speaks to them; called by the thread that trains.
    std::function<void(const std::string&)> say;
    std::function<void(const std::string&)> warn;
  };

  // Makes the folder. Throws std::runtime_error when no file can be written there.
  Profiler(Options options, const worker::WorkerEnv& env);
  ~Profiler() override;  // Writes what is there when training ends within the window.
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  void begin_step(std::int64_t step);  // Before its data; begins the phase "data wait".
  // Opens the window, or closes it and writes the file; true when that took time.
  bool end_step();
  void phase(const char* name);  // Ends the phase at hand and begins this one.
  void end_phase();
  void finish();  // The run has ended: says so if the window was not reached.

  // A queue whose wait() shows up: communication that no computation hides. CPU only.
  std::shared_ptr<worker::ReductionQueue> trace_queue(
      std::shared_ptr<worker::ReductionQueue> queue);

  std::int64_t collective_begins(const worker::Collective& collective) override;
  void collective_ends(const worker::Collective& collective, std::int64_t begun) noexcept override;

 private:
  void open();
  void close();
  std::string write();

  Options options_;
  int rank_;
  int world_size_;
  std::filesystem::path path_;
  SpanRecorder recorder_;
  std::mutex device_mutex_;
  std::optional<DeviceSpans> device_spans_;  // With a GPU.
  std::int64_t steps_done_ = 0;
  bool written_ = false;
  std::int64_t step_ = 0;
  std::int64_t step_start_ns_ = 0;
  const char* phase_ = nullptr;
  std::int64_t phase_start_ns_ = 0;
};

}  // namespace ddprun::trainer
