// The thread behind save(): who waits for whom, and where a failed write is heard of.
#include "trainer/checkpoint/checkpoint_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/finite_tensor.h"
#include "trainer/report/meters.h"
#include "worker/torch/choose_device.h"

namespace ddprun::trainer {
namespace {

// For a rank 0 of an earlier attempt on a host that stands still or was cut off: a server of files
// takes the locks of such a host back after a minute or two.
constexpr std::chrono::minutes taken_limit{3};

// A server of files that starts anew is back within a minute or two.
constexpr double failing_limit_s = 120;
constexpr double retry_pause_s = 10;

NamedTensors tensors_to_copy(const std::vector<CheckpointFile>& files) {
  NamedTensors tensors;
  for (const CheckpointFile& file : files) {
    if (file.is_copy) continue;
    tensors.insert(tensors.end(), file.contents.tensors.begin(), file.contents.tensors.end());
  }
  return tensors;
}

void check_finite(const CheckpointFile& file) {
  for (const auto& [name, tensor] : file.contents.tensors) {
    if (all_finite(tensor)) continue;
    throw RuinedWeightsError(fmt::format(
        "{} is not saved: '{}' holds values that are infinite or not numbers, and nothing can be "
        "trained from them; what was saved before stays: go on from it with a lower --lr, with "
        "--warmup-steps or --clip-grad-norm",
        file.name ? "the checkpoint of step " + std::to_string(file.name->step) : "the best model",
        name));
  }
}

bool is_best(const CheckpointFile& file) { return !file.name; }

double seconds_since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

}  // namespace

Retry retry_after(const FailedWrite& failed) {
  if (failed.hopeless) return Retry::Never;
  if (failed.in_a_row == 1) return Retry::Now;
  if (failed.failing_s >= failing_limit_s) return Retry::Never;
  return failed.ago_s >= retry_pause_s ? Retry::Now : Retry::Later;
}

CheckpointWriter::CheckpointWriter(CheckpointFolder* folder, std::size_t bytes_expected,
                                   torch::Device device, SnapshotMemory* memory)
    : folder_(folder),
      memory_(memory),
      thread_([this, bytes_expected, device] { run(bytes_expected, device); }) {}

CheckpointWriter::~CheckpointWriter() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (!failure_) return;
  try {
    std::rethrow_exception(failure_);
  } catch (const std::exception& error) {
    std::cerr << "train: " << error.what() << std::endl;
  }
}

SaveStall CheckpointWriter::save(std::vector<CheckpointFile> files) {
  SaveStall stall;
  Stopwatch watch;
  std::unique_lock lock(mutex_);
  wait_until_idle(lock);
  stall.failed_before = take_failure();
  stall.waited_s = watch.lap();
  copy(std::move(files));
  stall.copied_s = watch.lap();
  return stall;
}

bool CheckpointWriter::save_if_idle(std::vector<CheckpointFile> files) {
  const std::lock_guard lock(mutex_);
  if (busy_ || failure_) return false;
  copy(std::move(files));
  return true;
}

std::optional<FailedWrite> CheckpointWriter::describe_failure() const {
  if (!failure_) return std::nullopt;
  FailedWrite failed{.in_a_row = failures_,
                     .failing_s = seconds_since(first_failure_),
                     .ago_s = seconds_since(last_failure_)};
  try {
    std::rethrow_exception(failure_);
  } catch (const std::exception& error) {
    failed.reason = error.what();
    // Weights that are ruined, or a device that is broken.
    failed.hopeless = dynamic_cast<const RuinedWeightsError*>(&error) != nullptr ||
                      dynamic_cast<const c10::Error*>(&error) != nullptr;
  }
  return failed;
}

std::optional<FailedWrite> CheckpointWriter::take_failure() {
  auto failed = describe_failure();
  const auto failure = std::exchange(failure_, nullptr);
  if (failed && failed->hopeless) std::rethrow_exception(failure);
  return failed;
}

void CheckpointWriter::copy(std::vector<CheckpointFile> files) {
  if (unwritten_best_ && std::none_of(files.begin(), files.end(), is_best)) {
    files.push_back(std::move(*unwritten_best_));
  }
  unwritten_best_.reset();
  const NamedTensors copies = snapshot_.take(tensors_to_copy(files));
  auto next = copies.begin();
  for (CheckpointFile& file : files) {
    if (file.is_copy) continue;
    for (auto& entry : file.contents.tensors) entry = *next++;
  }
  due_ = std::move(files);
  busy_ = true;
  changed_.notify_all();
}

void CheckpointWriter::finish() {
  std::unique_lock lock(mutex_);
  wait_until_idle(lock);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

bool CheckpointWriter::settle() {
  std::unique_lock lock(mutex_);
  wait_until_idle(lock);
  return failure_ == nullptr;
}

std::optional<FailedWrite> CheckpointWriter::failed() {
  const std::lock_guard lock(mutex_);
  return busy_ ? std::nullopt : describe_failure();
}

std::vector<FinishedWrite> CheckpointWriter::take_finished() {
  const std::lock_guard lock(mutex_);
  return std::exchange(finished_, {});
}

std::vector<std::string> CheckpointWriter::take_warnings() {
  const std::lock_guard lock(mutex_);
  return std::exchange(warnings_, {});
}

void CheckpointWriter::wait_until_idle(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return !busy_; });
}

void CheckpointWriter::run(std::size_t bytes_expected, torch::Device device) {
  try {
    worker::choose_device(device);
    snapshot_.reserve(bytes_expected, /*from_gpu=*/!device.is_cpu());
  } catch (const std::exception&) {  // The first save tries again, and fails where it is seen.
  }
  std::unique_lock lock(mutex_);
  while (true) {
    busy_ = !due_.empty();
    if (!busy_) changed_.notify_all();
    changed_.wait(lock, [&] { return ending_ || !due_.empty(); });
    if (due_.empty()) return;
    auto files = std::exchange(due_, {});
    lock.unlock();
    std::exception_ptr failure;
    try {
      write(files);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure) {
      note_failure(failure, std::move(files));
    } else {
      failures_ = 0;
    }
  }
}

void CheckpointWriter::note_failure(std::exception_ptr failure, std::vector<CheckpointFile> files) {
  failure_ = std::move(failure);
  last_failure_ = std::chrono::steady_clock::now();
  if (failures_++ == 0) first_failure_ = last_failure_;
  // Once more does no harm to those that were written. Only what nobody changes can be kept: the
  // others' copies lie where the next save's will.
  const auto best = std::find_if(files.begin(), files.end(), is_best);
  if (best != files.end() && best->is_copy) unwritten_best_ = std::move(*best);
}

bool CheckpointWriter::is_ending() {
  const std::lock_guard lock(mutex_);
  return ending_;
}

void CheckpointWriter::take_folder() {
  if (!folder_->take(taken_limit, [this] { return is_ending(); })) return;
  const std::lock_guard lock(mutex_);
  warnings_.insert(warnings_.end(), folder_->warnings().begin(), folder_->warnings().end());
}

void CheckpointWriter::write(std::vector<CheckpointFile>& files) {
  snapshot_.wait_for_device();
  // Here and not in save(): a step does not wait for it.
  for (const CheckpointFile& file : files) check_finite(file);
  Stopwatch watch;
  // Before the folder, which may have to be waited for.
  for (const CheckpointFile& file : files) {
    if (file.name && memory_ != nullptr) memory_->keep(file.contents);
  }
  std::erase_if(files, [](const CheckpointFile& file) { return file.memory_only; });
  if (files.empty()) return;
  take_folder();
  if (files.size() > 1 && !folder_->list().empty()) {
    std::stable_partition(files.begin(), files.end(), is_best);
  }
  for (const CheckpointFile& file : files) {
    FinishedWrite done{file.name, {}, 0};
    done.path =
        file.name ? folder_->save(*file.name, file.contents) : folder_->save_best(file.contents);
    done.seconds = watch.lap();
    const std::lock_guard lock(mutex_);
    finished_.push_back(std::move(done));
  }
}

}  // namespace ddprun::trainer
