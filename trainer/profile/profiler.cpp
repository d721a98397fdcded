// When the trace opens and closes, and who adds to it; a trace that fails ends no training.
#include "trainer/profile/profiler.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <utility>

#include "trainer/formats/whole_file.h"
#include "trainer/profile/op_spans.h"
#include "worker/wording.h"

namespace ddprun::trainer {
namespace {

// Numbers of tracks that are no threads: above the kernel's numbers of threads.
constexpr std::int64_t gpu_compute_track = std::int64_t{1} << 32;
constexpr std::int64_t gpu_communication_track = gpu_compute_track + 1;

std::int64_t wall_minus_monotonic_ns() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count() -
         SpanRecorder::now_ns();
}

class ObservedQueue : public worker::ReductionQueue {
 public:
  ObservedQueue(std::shared_ptr<worker::ReductionQueue> inner, SpanRecorder& recorder)
      : inner_(std::move(inner)), recorder_(recorder) {}

  void all_reduce(void* data, std::size_t count, worker::DataType type,
                  worker::ReduceOp op) override {
    inner_->all_reduce(data, count, type, op);
  }

  void run(Work work) override { inner_->run(std::move(work)); }

  void wait() override {
    const std::int64_t start_ns = SpanRecorder::now_ns();
    inner_->wait();
    recorder_.add({.name = "wait for gradients",
                   .category = "wait",
                   .start_ns = start_ns,
                   .end_ns = SpanRecorder::now_ns(),
                   .thread = SpanRecorder::this_thread()});
  }

  bool idle() const override { return inner_->idle(); }
  std::chrono::nanoseconds exposed() const override { return inner_->exposed(); }

 private:
  std::shared_ptr<worker::ReductionQueue> inner_;
  SpanRecorder& recorder_;
};

}  // namespace

Profiler::Profiler(Options options, const worker::WorkerEnv& env)
    : options_(std::move(options)),
      rank_(env.rank),
      world_size_(env.world_size),
      path_(options_.folder / fmt::format("rank_{}.json", env.rank)) {
  std::error_code error;
  std::filesystem::create_directories(options_.folder, error);
  if (error || ::access(options_.folder.c_str(), W_OK) != 0) {
    throw std::runtime_error(fmt::format("--profile: cannot write into the folder {}: {}",
                                         options_.folder.string(),
                                         error ? error.message() : std::strerror(errno)));
  }
  recorder_.name_thread(SpanRecorder::this_thread(), "training");
  if (!options_.device.is_cpu()) {
    device_spans_.emplace(options_.device);
    recorder_.name_thread(gpu_compute_track, "GPU: phases");
    recorder_.name_thread(gpu_communication_track, "GPU: communication");
  }
  if (options_.operations) record_operations_into(&recorder_);
  if (options_.window.first == 0) open();
}

Profiler::~Profiler() {
  if (recorder_.is_open()) {
    try {
      close();
    } catch (...) {
      // What ended training is told elsewhere.
    }
  }
  if (options_.operations) record_operations_into(nullptr);
}

void Profiler::open() {
  if (device_spans_) {
    const std::lock_guard lock(device_mutex_);
    device_spans_->start();
  }
  recorder_.open();
}

void Profiler::close() {
  end_phase();
  if (device_spans_) {
    const std::lock_guard lock(device_mutex_);
    for (TraceSpan& span : device_spans_->take()) recorder_.add(std::move(span));
  }
  recorder_.close();
  written_ = true;
  const std::string problem = write();
  if (problem.empty()) {
    options_.say(fmt::format("profile of steps up to {} in {}", step_, path_.string()));
  } else {  // Of any rank; a trace is not worth the end of a run.
    std::cerr << fmt::format("train: rank {}: warning: --profile: {}", rank_, problem) << std::endl;
  }
}

// What went wrong; "" when nothing did. A file of an earlier run is replaced, at once.
std::string Profiler::write() {
  TraceProcess process{.rank = rank_,
                       .world_size = world_size_,
                       .host = worker::own_host_name(),
                       .pid = ::getpid(),
                       .wall_minus_monotonic_ns = wall_minus_monotonic_ns()};
  const std::vector<TraceSpan> spans = recorder_.take(process);
  try {
    write_whole_file(path_, trace_json(process, spans));
  } catch (const FileAccessError& error) {
    return fmt::format("the trace is lost: {}", error.what());
  }
  return "";
}

void Profiler::begin_step(std::int64_t step) {
  step_ = step;
  phase("data wait");
  step_start_ns_ = phase_start_ns_;
}

bool Profiler::end_step() {
  end_phase();
  recorder_.add({.name = "step",
                 .category = "step",
                 .start_ns = step_start_ns_,
                 .end_ns = SpanRecorder::now_ns(),
                 .thread = SpanRecorder::this_thread(),
                 .argument = "step",
                 .value = step_});
  steps_done_ += 1;
  if (recorder_.is_open() && steps_done_ >= options_.window.last) {
    close();
    return true;
  }
  if (steps_done_ != options_.window.first || written_) return false;
  open();
  return true;
}

void Profiler::phase(const char* name) {
  end_phase();
  phase_ = name;
  phase_start_ns_ = SpanRecorder::now_ns();
  if (device_spans_ && recorder_.is_open()) {
    const std::lock_guard lock(device_mutex_);
    device_spans_->begin(gpu_compute_track, name, "phase", device_spans_->current_stream());
  }
}

void Profiler::end_phase() {
  if (phase_ == nullptr) return;
  recorder_.add({.name = std::exchange(phase_, nullptr),
                 .category = "phase",
                 .start_ns = phase_start_ns_,
                 .end_ns = SpanRecorder::now_ns(),
                 .thread = SpanRecorder::this_thread()});
  if (device_spans_ && recorder_.is_open()) {
    const std::lock_guard lock(device_mutex_);
    device_spans_->end(gpu_compute_track, device_spans_->current_stream());
  }
}

void Profiler::finish() {
  if (recorder_.is_open()) close();
  if (written_) return;
  options_.warn(
      fmt::format("--profile: the run ended after {} steps, before the trace began after {}; see "
                  "--profile-steps",
                  steps_done_, options_.window.first));
}

std::shared_ptr<worker::ReductionQueue> Profiler::trace_queue(
    std::shared_ptr<worker::ReductionQueue> queue) {
  return std::make_shared<ObservedQueue>(std::move(queue), recorder_);
}

std::int64_t Profiler::collective_begins(const worker::Collective& collective) {
  if (!recorder_.is_open()) return 0;
  const std::lock_guard lock(device_mutex_);
  if (device_spans_) {
    device_spans_->begin(gpu_communication_track, collective.name, "communication",
                         device_spans_->native_stream(collective.stream));
  }
  return SpanRecorder::now_ns();
}

void Profiler::collective_ends(const worker::Collective& collective, std::int64_t begun) noexcept {
  if (begun == 0 || !recorder_.is_open()) return;
  try {
    recorder_.name_thread(SpanRecorder::this_thread(), "communication");
    recorder_.add({.name = collective.name,
                   .category = "communication",
                   .start_ns = begun,
                   .end_ns = SpanRecorder::now_ns(),
                   .thread = SpanRecorder::this_thread(),
                   .argument = "bytes",
                   .value = static_cast<std::int64_t>(collective.bytes)});
    const std::lock_guard lock(device_mutex_);
    if (device_spans_) {
      device_spans_->end(gpu_communication_track, device_spans_->native_stream(collective.stream));
    }
  } catch (const std::exception& error) {
    std::cerr << "train: warning: --profile: " << error.what() << std::endl;
  }
}

}  // namespace ddprun::trainer
